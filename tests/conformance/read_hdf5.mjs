// Reads the dataset "data" of HDF5 files and prints each as one line of JSON: its shape, whether its values were turned into doubles, and the raw bytes of the values, little-endian, in base64.
import h5wasm from "h5wasm/node";
import { install_local_plugins } from "h5wasm-plugins";

const module = await h5wasm.ready;
// Without this, chunks of filters that come as plugins are read as other values.
if (process.env.WITHOUT_PLUGINS === undefined) install_local_plugins(module);

for (const path of process.argv.slice(2)) {
  try {
    const file = new h5wasm.File(path, "r");
    const { shape, value } = file.get("data");
    const isTyped = ArrayBuffer.isView(value);
    // A complex number is a pair of numbers.
    const numbers = isTyped ? value : Float64Array.from(value.flat());
    const bytes = Buffer.from(numbers.buffer, numbers.byteOffset, numbers.byteLength);
    console.log(JSON.stringify({ shape, doubles: !isTyped, data: bytes.toString("base64") }));
    file.close();
  } catch (error) {
    console.log(JSON.stringify({ error: String(error) }));
  }
}
