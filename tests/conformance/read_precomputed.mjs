// Reads the finest scale of volumes with the code of Neuroglancer that fetches and decodes chunks, and prints each as one line of JSON: shape along x, y, z and channel, and the raw bytes of its values, x fastest, in base64.
// That code runs in workers of a browser. Here the computations of its workers run in this process, and its requests read files.
import { open } from "node:fs/promises";
import { readFileSync } from "node:fs";

const ORIGIN = "http://files";
const channel = {};
let toCaller;
globalThis.self = channel;
globalThis.navigator ??= { userAgent: "node" };
channel.postMessage = (data) => queueMicrotask(() => toCaller?.({ data }));
globalThis.Worker = class {
  constructor() {
    toCaller = (message) => this.onmessage(message);
    channel.postMessage(null); // as a worker does that is ready
  }
  postMessage(data) {
    channel.onmessage({ data });
  }
};
globalThis.fetch = async (url, { headers } = {}) => {
  if (new URL(url).protocol === "file:") // a part of Neuroglancer, in WebAssembly
    return new Response(readFileSync(url), { headers: { "content-type": "application/wasm" } });
  const [, first, last] = /^bytes=(\d+)-(\d+)$/.exec(new Headers(headers).get("range"));
  let file;
  try {
    file = await open(new URL(url).pathname);
  } catch (error) {
    if (error.code === "ENOENT") return new Response(null, { status: 404 });
    throw error;
  }
  try {
    const data = Buffer.alloc(Number(last) - Number(first) + 1);
    const { bytesRead } = await file.read(data, 0, data.length, Number(first));
    return new Response(data.subarray(0, bytesRead), { status: 206 });
  } finally {
    await file.close();
  }
};

const part = (name) => import(`neuroglancer/unstable/${name}.js`);
const { PrecomputedVolumeChunkSource } = await part("datasource/precomputed/backend");
const { DataEncoding, ShardingHashFunction, VolumeChunkEncoding } = await part(
  "datasource/precomputed/base",
);
const { DataType } = await part("util/data_type");
const { uncancelableToken } = await part("util/cancellation");
const labels32 = await part("sliceview/compressed_segmentation/decode_uint32");
const labels64 = await part("sliceview/compressed_segmentation/decode_uint64");
await part("async_computation/decode_gzip");
await part("async_computation/decode_png");

const ARRAYS = {
  int8: Int8Array,
  uint8: Uint8Array,
  uint16: Uint16Array,
  int16: Int16Array,
  uint32: Uint32Array,
  int32: Int32Array,
  uint64: BigUint64Array,
  float32: Float32Array,
};

function sourceOf(path, info, scale) {
  const { sharding } = scale;
  const chunkManager = {
    addRef: () => chunkManager,
    dispose() {},
    memoize: { get: (_, make) => make() },
    queueManager: { sources: new Set() },
    recomputeChunkPrioritiesLate: { add: () => () => {} },
  };
  const rpc = { get: (given) => given, getOptionalRef: () => undefined, set() {}, newId: () => 0 };
  const source = new PrecomputedVolumeChunkSource(rpc, {
    chunkManager,
    spec: {
      rank: 4,
      dataType: DataType[info.data_type.toUpperCase()],
      chunkDataSize: Uint32Array.from([...scale.chunk_sizes[0], info.num_channels]),
      upperVoxelBound: Float32Array.from([...scale.size, info.num_channels]),
      baseVoxelOffset: Float32Array.from([...(scale.voxel_offset ?? [0, 0, 0]), 0]),
    },
    parameters: {
      url: `${ORIGIN}${path}/${scale.key}`,
      encoding: VolumeChunkEncoding[scale.encoding.toUpperCase()],
      sharding: {
        hash: ShardingHashFunction[sharding.hash.toUpperCase()],
        preshiftBits: sharding.preshift_bits,
        minishardBits: sharding.minishard_bits,
        shardBits: sharding.shard_bits,
        minishardIndexEncoding: DataEncoding[sharding.minishard_index_encoding.toUpperCase()],
        dataEncoding: DataEncoding[sharding.data_encoding.toUpperCase()],
      },
    },
  });
  // In a browser, a queue with priorities decides when an index is fetched.
  const indexes = source.minishardIndexSource;
  const kept = new Map();
  indexes.getData = (key, _, token) => {
    const name = `${key}`;
    if (!kept.has(name)) {
      const chunk = { decodedKey: key };
      kept.set(name, indexes.download(chunk, token).then(() => chunk.data));
    }
    return kept.get(name);
  };
  return source;
}

function valuesOf(chunk, scale, Values) {
  if (scale.encoding !== "compressed_segmentation") return chunk.data;
  const size = chunk.chunkDataSize;
  const wide = Values === BigUint64Array;
  const n = size.reduce((product, one) => product * one, 1);
  const out = new Uint32Array(wide ? 2 * n : n);
  const block = scale.compressed_segmentation_block_size;
  (wide ? labels64 : labels32).decodeChannels(out, chunk.data, 0, size, block);
  return wide ? new BigUint64Array(out.buffer) : out;
}

async function read(path) {
  const info = JSON.parse(readFileSync(`${path}/info`));
  const scale = info.scales[0];
  const shape = [...scale.size, info.num_channels];
  const Values = ARRAYS[info.data_type];
  const values = new Values(shape.reduce((product, one) => product * one, 1));
  const source = sourceOf(path, info, scale);
  const counts = scale.size.map((n, axis) => Math.ceil(n / scale.chunk_sizes[0][axis]));
  for (let z = 0; z < counts[2]; ++z)
    for (let y = 0; y < counts[1]; ++y)
      for (let x = 0; x < counts[0]; ++x) {
        const chunk = source.getChunk(Float32Array.of(x, y, z, 0));
        await source.download(chunk, uncancelableToken);
        if (chunk.data === null) continue; // missing, and thus zeros
        const data = valuesOf(chunk, scale, Values);
        const view = new Values(data.buffer, data.byteOffset, data.byteLength / Values.BYTES_PER_ELEMENT);
        const [width, height, depth, nChannels] = chunk.chunkDataSize;
        const [left, top, front] = [x, y, z].map((i, axis) => i * scale.chunk_sizes[0][axis]);
        let from = 0;
        for (let c = 0; c < nChannels; ++c)
          for (let k = 0; k < depth; ++k)
            for (let j = 0; j < height; ++j, from += width) {
              const row = ((c * shape[2] + front + k) * shape[1] + top + j) * shape[0] + left;
              values.set(view.subarray(from, from + width), row);
            }
      }
  return { shape, data: Buffer.from(values.buffer).toString("base64") };
}

for (const path of process.argv.slice(2)) {
  try {
    console.log(JSON.stringify(await read(path)));
  } catch (error) {
    console.log(JSON.stringify({ error: String(error.stack ?? error) }));
  }
}
