// Tokens: log-probabilities of both models, token by token, as a heat map that also has its numbers.
const SHADES = 6;
const DARKEST = 800; // hundredths of a nat: a probability of 1 in 3,000
const DRAWN = 1500; // tokens drawn at once
const NEVER = -1e12; // stands for a probability of 0, see document_texts.py
const CHANGED = 100; // hundredths of a nat from which a token is framed
const HELP = "Point at a token, or move by arrow keys (Page Up and Down: to the next framed one), to read its figures here.";

// 0 for a certain token, SHADES for one that the model did not expect at all.
function shade(hundredths) {
  if (hundredths === null || hundredths === undefined) return "none";
  const share = Math.min(Math.sqrt(Math.max(-hundredths, 0) / DARKEST), 1);
  return String(Math.round(share * SHADES));
}

function tokenTable({ names, base, candidate, kl }) {
  const count = Math.max(base.length, candidate.length);
  const figures = (place) => ({
    place, count, name: names?.[place] ?? null, base: base[place], candidate: candidate[place], kl: kl?.[place],
  });
  const said = element("p", "token-figures", HELP);
  const list = element("ol", "tokens");
  list.setAttribute("role", "listbox");
  list.setAttribute("aria-label", "Tokens with their log-probabilities");
  const more = element("button", "");
  more.type = "button";
  const draw = () => {
    const end = Math.min(list.childElementCount + DRAWN, count);
    for (let place = list.childElementCount; place < end; place++) list.append(tokenCell(figures(place)));
    more.textContent = `Show more of ${count.toLocaleString("en")} tokens`;
    more.hidden = list.childElementCount >= count;
  };
  more.addEventListener("click", draw);
  draw();
  const show = (event) => {
    const cell = event.target.closest?.(".token");
    if (cell) said.textContent = cell.getAttribute("aria-label");
  };
  list.addEventListener("pointerover", show);
  list.addEventListener("focusin", show);
  list.addEventListener("click", (event) => chooseToken(list, event.target.closest(".token")));
  list.addEventListener("keydown", (event) => {
    const to = nextToken(list, event.key);
    if (to === undefined) return;
    event.preventDefault();
    chooseToken(list, to);
  });
  if (list.firstElementChild) list.firstElementChild.tabIndex = 0;
  return element("div", "heat-map", legend(), said, list, more);
}

// Where a key leads from the token that has the focus; undefined where it leads nowhere.
function nextToken(list, key) {
  const now = list.querySelector("[tabindex='0']");
  const framed = (step) => {
    let one = now[step];
    while (one && !one.matches(".worse, .better")) one = one[step];
    return one;
  };
  const to = {
    ArrowRight: () => now.nextElementSibling, ArrowDown: () => now.nextElementSibling,
    ArrowLeft: () => now.previousElementSibling, ArrowUp: () => now.previousElementSibling,
    Home: () => list.firstElementChild, End: () => list.lastElementChild,
    PageDown: () => framed("nextElementSibling"), PageUp: () => framed("previousElementSibling"),
  }[key];
  return to && (to() ?? now);
}

function chooseToken(list, cell) {
  if (!cell) return;
  const before = list.querySelector("[tabindex='0']");
  before.tabIndex = -1;
  before.setAttribute("aria-selected", "false");
  cell.tabIndex = 0;
  cell.setAttribute("aria-selected", "true");
  cell.focus();
}

function tokenCell({ place, count, name, base, candidate, kl }) {
  const change = changeOf(base, candidate);
  const item = element("li", "token");
  item.setAttribute("role", "option");
  item.setAttribute("aria-selected", "false");
  item.tabIndex = -1;
  const text = element("bdi", "token-text", tokenText(name, place));
  item.append(text, heatCell(base), heatCell(candidate));
  if (Math.abs(change) >= CHANGED) {
    item.classList.add(change < 0 ? "worse" : "better");
    text.prepend(element("span", "mark", change < 0 ? "▼" : "▲"));
  }
  const parts = [
    `Token ${place + 1} of ${count}, “${tokenText(name, place)}”: base ${withChance(base)}`,
    `candidate ${withChance(candidate)}`, `change ${change > 0 ? "+" : ""}${nats(change)}`,
  ];
  if (kl !== null && kl !== undefined) parts.push(`KL ${nats(kl)}`);
  item.setAttribute("aria-label", parts.join(", "));
  return item;
}

// What cannot be seen of a token is written out; without its text its number stands for it.
function tokenText(name, place) {
  if (name === null) return String(place + 1);
  if (typeof name === "number") return `#${name}`;
  return name.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll(" ", "·");
}

function changeOf(base, candidate) {
  const known = (value) => value !== null && value !== undefined;
  if (!known(base) || !known(candidate)) return null;
  if (base === NEVER || candidate === NEVER) return base === candidate ? 0 : Math.sign(candidate - base) * -NEVER;
  return candidate - base;
}

function heatCell(hundredths) {
  return element("span", `heat shade-${shade(hundredths)}`, nats(hundredths));
}

function nats(hundredths) {
  if (hundredths === null || hundredths === undefined) return "–";
  if (Math.abs(hundredths) >= -NEVER) return hundredths < 0 ? "-∞" : "∞";
  return (hundredths / 100).toFixed(2);
}

// A log-probability and the probability that it is.
function withChance(hundredths) {
  if (hundredths === null || hundredths === undefined) return "–";
  const chance = Math.exp(hundredths / 100);
  const text = chance === 0 || chance >= 0.0995 ? chance.toFixed(2) : chance.toPrecision(2);
  return `${nats(hundredths)} (p ${hundredths === NEVER ? "0" : text})`;
}

function legend() {
  const shades = element("span", "shades");
  for (let number = 0; number <= SHADES; number++) {
    const from = -((number / SHADES) ** 2) * DARKEST / 100;
    const text = number === 0 ? "0" : `${number === SHADES ? "≤ " : ""}${from.toFixed(1)}`;
    shades.append(element("span", `heat shade-${number}`, text));
  }
  return element("p", "dim legend", "Log-probability of each token, above in the base, below it in the candidate: ",
    shades, " Framed: changed by 1 nat or more, ▼ less likely in the candidate, ▲ more likely.");
}
