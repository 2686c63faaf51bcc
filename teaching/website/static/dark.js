// Dark or light slides: as the site was left (its button keeps the same word), otherwise as the system asks; D changes it.
"use strict";
{
  const systemIsDark = matchMedia("(prefers-color-scheme: dark)");
  let theme = null;
  const show = () => {
    document.documentElement.classList.toggle("dark", theme === "dark" || (theme !== "light" && systemIsDark.matches));
  };
  try { theme = localStorage.getItem("theme"); } catch {} // a browser may refuse to keep anything
  systemIsDark.addEventListener("change", show);
  addEventListener("keydown", event => {
    if (event.key.toLowerCase() !== "d" || event.ctrlKey || event.metaKey || event.altKey
      || event.target.closest?.("input, select, dialog")) return;
    theme = document.documentElement.classList.contains("dark") ? "light" : "dark";
    try { localStorage.setItem("theme", theme); } catch {}
    show();
  });
  show();
}
