// Reads arrays, of paths or of URLs, and prints each as one line of JSON: shape, strides in elements, and the raw bytes of its values, little-endian, in base64.
import { FetchStore, FileSystemStore } from "@zarrita/storage";
import * as zarr from "zarrita";

for (const path of process.argv.slice(2)) {
  try {
    const store = path.startsWith("http") ? new FetchStore(path) : new FileSystemStore(path);
    const array = await zarr.open(store, { kind: "array" });
    const { data, shape, stride } = await zarr.get(array);
    const bytes = Buffer.from(data.buffer, data.byteOffset, data.byteLength);
    console.log(JSON.stringify({ shape, stride, data: bytes.toString("base64") }));
  } catch (error) {
    console.log(JSON.stringify({ error: String(error) }));
  }
}
