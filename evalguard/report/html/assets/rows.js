// Rows: which documents are shown, and in which order; no drawing.
const COLUMNS = [
  { key: "id", name: "Document", number: true },
  { key: "drift", name: "Sigma it adds", number: true },
  { key: "base", name: "Base", number: true },
  { key: "candidate", name: "Candidate", number: true },
  { key: "kl", name: "Mean KL", number: true },
  { key: "text", name: "Prompt, its end", number: false },
];

class Rows {
  constructor(task, metric) {
    this.task = task;
    this.unit = metric.unit;
    this.values = {
      id: task.ids, drift: metric.drift, base: metric.base, candidate: metric.candidate, kl: task.kl,
    };
    this.order = task.ids.map((_, place) => place);
    // What moved most comes first: where no score did, by what is beneath the scores.
    this.sortedBy = metric.drift?.some(Boolean) ? "drift" : task.kl ? "kl" : "id";
    this.descending = this.sortedBy !== "id";
    this.filter = "all";
    this.wanted = null;
  }

  get columns() {
    return COLUMNS.filter(({ key }) => key === "text" || this.values[key]).map((column) => {
      const scored = column.key === "base" || column.key === "candidate";
      return scored ? { ...column, name: `${column.name} ${this.unit === "score" ? "score" : "log-lik."}` } : column;
    });
  }

  sortBy(key) {
    this.descending = this.sortedBy === key ? !this.descending : key !== "id";
    this.sortedBy = key;
    this.arrange();
  }

  // `wanted`: a test of a document's place, from the search; null: all.
  arrange() {
    const keep = this.test();
    const places = [];
    for (let place = 0; place < this.task.ids.length; place++) {
      if (keep(place) && (this.wanted === null || this.wanted(place))) places.push(place);
    }
    const values = this.values[this.sortedBy];
    const sign = this.descending ? -1 : 1;
    const least = -Infinity * sign; // a document without a number comes last
    if (values) {
      places.sort((a, b) => {
        const one = values[a] ?? -least, other = values[b] ?? -least;
        return one === other ? a - b : (one < other ? -sign : sign);
      });
    }
    this.order = places;
  }

  test() {
    const { drift, base, candidate } = this.values;
    const { answers } = this.task;
    const moved = (place) => (drift ? drift[place] : (candidate?.[place] ?? 0) - (base?.[place] ?? 0));
    return {
      all: () => true,
      moved: (place) => (moved(place) ?? 0) !== 0,
      worse: (place) => drift !== null && drift[place] > 0,
      better: (place) => drift !== null && drift[place] < 0,
      lost: (place) => base?.[place] === 1 && candidate?.[place] === 0,
      won: (place) => base?.[place] === 0 && candidate?.[place] === 1,
      answers: (place) => answers[place] === 1,
    }[this.filter];
  }

  placeOf(id) {
    return this.task.ids.indexOf(id);
  }
}

function numberText(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size < 1e-3 || size >= 1e6 ? value.toExponential(1) : String(value);
}

function signedText(value) {
  return value > 0 ? `+${numberText(value)}` : numberText(value);
}
