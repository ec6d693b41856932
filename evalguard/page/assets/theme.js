// Light, dark, or as the system has it; remembered where the browser allows it.
const THEMES = ["system", "light", "dark"];

function kept(theme) {
  try {
    if (theme === undefined) return localStorage.getItem("evalguard-theme");
    localStorage.setItem("evalguard-theme", theme);
  } catch { /* a page read from a file may have no storage: it starts as the system has it */ }
  return theme;
}

function showTheme(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  const button = document.getElementById("theme");
  button.textContent = `Theme: ${theme}`;
  button.hidden = false;
}

let theme = THEMES.includes(kept()) ? kept() : "system";
showTheme(theme);
document.getElementById("theme").addEventListener("click", () => {
  theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  kept(theme);
  showTheme(theme);
});

// Whatever is folded away on the screen is printed.
addEventListener("beforeprint", () => {
  for (const folded of document.querySelectorAll("details:not([open])")) {
    folded.open = true;
    folded.dataset.folded = "";
  }
});
addEventListener("afterprint", () => {
  for (const folded of document.querySelectorAll("details[data-folded]")) {
    folded.open = false;
    delete folded.dataset.folded;
  }
});

// Commands are there to be copied.
for (const button of document.querySelectorAll("button.copy")) {
  button.hidden = false;
  button.addEventListener("click", () => {
    const code = button.parentElement.querySelector("code");
    getSelection().selectAllChildren(code);
    const done = () => { button.textContent = "Copied"; };
    const failed = () => { button.textContent = "Selected"; };
    if (navigator.clipboard) navigator.clipboard.writeText(code.textContent).then(done, failed);
    else failed();
  });
}
