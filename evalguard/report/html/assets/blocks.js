// Blocks: data that travels in the page as base64 of gzip of JSON.
async function readBlock(name) {
  const element = document.getElementById(name);
  if (element === null) return null;
  const packed = atob(element.textContent);
  const bytes = new Uint8Array(packed.length);
  for (let i = 0; i < packed.length; i++) bytes[i] = packed.charCodeAt(i);
  const unpacked = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(unpacked).json();
}

// Texts of a task come in pieces; each is read once, when it is first asked for.
class Texts {
  constructor(task, count, piece) {
    this.task = task;
    this.piece = piece;
    this.pieces = new Array(Math.ceil(count / piece)).fill(null);
    this.searchable = null;
  }

  async at(place) {
    const number = Math.floor(place / this.piece);
    this.pieces[number] ??= readBlock(`texts-${this.task}-${number}`);
    return (await this.pieces[number])[place % this.piece];
  }

  // One lower-case string per document, for the search.
  async lower() {
    if (this.searchable === null) {
      const found = [];
      for (let number = 0; number < this.pieces.length; number++) {
        this.pieces[number] ??= readBlock(`texts-${this.task}-${number}`);
        for (const text of await this.pieces[number]) found.push(searchText(text));
        await pause();
      }
      this.searchable = found;
    }
    return this.searchable;
  }
}

function searchText([prompt, target, requests]) {
  const parts = [prompt, target];
  for (const [continuation, base, candidate] of requests) {
    parts.push(continuation, base?.[2] ?? "", candidate?.[2] ?? "");
  }
  return parts.join("\n").toLowerCase();
}

// Lets the browser draw and listen between two pieces of work.
function pause() {
  return new Promise((resume) => setTimeout(resume));
}
