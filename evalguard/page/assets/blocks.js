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
    Object.assign(this, { task, count, piece });
    this.pieces = new Array(Math.ceil(count / piece)).fill(null);
    this.searchable = null;
  }

  read(number) {
    this.pieces[number] ??= readBlock(`texts-${this.task}-${number}`);
    return this.pieces[number];
  }

  async at(place) {
    return documentAt(await this.read(Math.floor(place / this.piece)), place % this.piece);
  }

  // One lower-case string per document, for the search.
  async lower() {
    if (this.searchable === null) {
      const found = [];
      for (let number = 0; number < this.pieces.length; number++) {
        const piece = await this.read(number);
        for (let place = 0; place < piece.prompt.length; place++) found.push(searchText(piece, place));
        await pause();
      }
      this.searchable = found;
    }
    return this.searchable;
  }
}

// A document of a piece, whose columns hold one value each.
function documentAt(piece, place) {
  const requests = piece.continuation[place].map((continuation, number) => ({
    continuation: continuation ?? piece.target[place],
    base: piece.base[place][number],
    candidate: piece.candidate[place][number],
    tokens: tokensOf(piece.names[place][number], piece.heat[place][number]),
  }));
  return { prompt: piece.prompt[place], target: piece.target[place], requests };
}

function tokensOf(names, heat) {
  if (heat === null) return null;
  const [base, second, kl, differences] = heat;
  const candidate = !differences ? second
    : second.map((change, place) => (change === null ? null : base[place] + change));
  return { names, base, candidate, kl };
}

function searchText(piece, place) {
  const parts = [piece.prompt[place], piece.target[place], ...piece.continuation[place]];
  for (const side of [piece.base[place], piece.candidate[place]]) {
    for (const said of side) if (said?.[2]) parts.push(said[2]);
  }
  return parts.join("\n").toLowerCase();
}

// Lets the browser draw and listen between two pieces of work.
function pause() {
  return new Promise((resume) => setTimeout(resume));
}
