// Tokens: log-probabilities of both models, token by token, as a heat map that also has its numbers.
const SHADES = 6;
const DARKEST = 800; // hundredths of a nat: a probability of 1 in 3,000
const DRAWN = 1500; // tokens drawn at once

// 0 for a certain token, SHADES for one that the model did not expect at all.
function shade(hundredths) {
  if (hundredths === null || hundredths === undefined) return "none";
  const share = Math.min(Math.sqrt(Math.max(-hundredths, 0) / DARKEST), 1);
  return String(Math.round(share * SHADES));
}

function tokenTable({ names, base, candidate, kl }) {
  const box = document.createElement("div");
  const list = document.createElement("ol");
  list.className = "tokens";
  box.append(list);
  const count = Math.max(base.length, candidate.length);
  let drawn = 0;
  const more = document.createElement("button");
  more.type = "button";
  const draw = () => {
    const end = Math.min(drawn + DRAWN, count);
    for (; drawn < end; drawn++) {
      list.append(tokenCell(names?.[drawn] ?? null, drawn, base[drawn], candidate[drawn], kl?.[drawn]));
    }
    more.textContent = `Show more of ${count.toLocaleString("en")} tokens`;
    more.hidden = drawn >= count;
  };
  more.addEventListener("click", draw);
  box.append(more);
  draw();
  return box;
}

function tokenCell(name, place, base, candidate, kl) {
  const item = document.createElement("li");
  const change = (candidate ?? 0) - (base ?? 0);
  item.className = Math.abs(change) >= 100 ? `token ${change < 0 ? "worse" : "better"}` : "token";
  const text = document.createElement("bdi");
  text.className = "token-text";
  text.textContent = name === null ? String(place + 1) : typeof name === "number" ? `#${name}` : name;
  item.append(text, heatCell(base, "base"), heatCell(candidate, "candidate"));
  item.title = `base ${nats(base)}, candidate ${nats(candidate)}, change ${nats(change)}`
    + (kl === null || kl === undefined ? "" : `, KL ${nats(kl)}`);
  return item;
}

function heatCell(hundredths, side) {
  const cell = document.createElement("span");
  cell.className = `heat shade-${shade(hundredths)}`;
  const role = document.createElement("span");
  role.className = "hidden-text";
  role.textContent = `${side} `;
  cell.append(role, nats(hundredths));
  return cell;
}

function nats(hundredths) {
  return hundredths === null || hundredths === undefined ? "–" : (hundredths / 100).toFixed(2);
}
