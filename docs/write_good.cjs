// Reads a JSON list of texts, and prints a JSON list of what write-good finds in each: words and reason.
const writeGood = require("write-good");

const texts = JSON.parse(require("fs").readFileSync(0, "utf8"));
const findings = (text) =>
  writeGood(text).map(({ index, offset, reason }) => [text.slice(index, index + offset), reason.slice(offset + 3)]);
process.stdout.write(JSON.stringify(texts.map(findings)));
