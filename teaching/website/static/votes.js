// The vote at a Predict slide: for each answer the hands before and after the discussion, kept in this browser.
"use strict";
{
  const deck = location.pathname.split("/").pop().replace(".html", ""), store = `votes ${deck}`;
  const rounds = ["before", "after"];
  const box = document.querySelector("#vote"), find = selector => box.querySelector(selector);
  const today = () => new Date().toLocaleDateString("sv"); // Sweden writes 2026-11-30
  const tell = text => { find(".told").textContent = text; };
  const plain = html => new DOMParser().parseFromString(html, "text/html").body.textContent.trim();
  const asked = passage => plain(passage.match(/<b>(.*)<\/b>/s)[1]);
  let all = {}, votes = [], place = 0, vote, shown;
  try { all = JSON.parse(localStorage.getItem(store)) ?? {}; } catch { /* said when counts are to be kept */ }

  const keep = () => {
    try { localStorage.setItem(store, JSON.stringify(all)); } catch {
      tell("This browser keeps no counts. Save them before you close the page.");
    }
  };
  const change = (part, row, value) => {
    vote[part][row] = value;
    vote.date = today();
    all[votes[place].passage] = vote;
    keep();
    draw();
  };
  const veil = () => { // a first count that is seen pulls the second one to the majority
    const sum = round => vote[round].reduce((total, count) => total + count), hidden = !shown && sum("after") === 0;
    box.classList.toggle("veiled", hidden);
    find("[data-do=unveil]").hidden = !hidden || sum("before") === 0;
  };
  const draw = () => {
    veil();
    const most = Math.max(1, ...vote.before, ...vote.after);
    [...find("tbody").rows].forEach((line, row) => rounds.forEach(round => {
      const count = vote[round][row], bar = line.querySelector(`i.${round}`);
      line.querySelector(`input.${round}`).value = count;
      bar.style.width = `${100 * count / most}%`;
    }));
    for (const round of rounds) find(`.${round} output`).value = vote[round].reduce((sum, count) => sum + count);
  };
  const fit = () => { // long questions get smaller letters
    for (let size = 100; size === 100 || (size > 50 && box.scrollHeight > box.clientHeight); size -= 5)
      box.style.setProperty("--size", size / 100);
  };
  const cells = name => rounds.map(round => {
    const label = what => `aria-label="${what}${name}, ${round}"`;
    return `<td class="${round}" data-round="${round}"><button data-add="-1" ${label("One less: ")}>−</button>
      <input class="${round}" type="number" min="0" max="999" ${label("")}>
      <button data-add="1" ${label("One more: ")}>+</button></td>`;
  }).join("");
  const show = at => {
    const { passage, answers } = votes[place = (at + votes.length) % votes.length];
    const names = answers.length ? answers.map(plain) : ["A", "B", "C"], zeros = names.map(() => 0);
    const slide = Reveal.getSlidePastCount() + 1;
    shown = false;
    vote = all[passage] ?? { slide, question: asked(passage), answers: names, before: zeros, after: [...zeros] };
    find("#passage").innerHTML = passage;
    find("tbody").innerHTML = names.map((name, row) => `<tr><th scope="row">${answers[row]
      ?? `<input class="name" aria-label="Answer ${name}">`}</th>${cells(name.replaceAll('"', ""))}
      <td class="bars"><i class="before"></i><i class="after"></i></td></tr>`).join("");
    box.querySelectorAll(".name").forEach((name, row) => { name.value = vote.answers[row]; });
    find(".place").textContent = `${place + 1} of ${votes.length}`;
    for (const part of box.querySelectorAll(".place, [data-do=last], [data-do=next]")) part.hidden = votes.length < 2;
    tell("");
    draw();
    fit();
    MathJax.typesetPromise?.([box]).then(fit);
  };
  const toggle = () => {
    document.activeElement.blur(); // what was typed counts, and after the vote the next key is the deck's again
    if (box.open) return box.close();
    const button = Reveal.getCurrentSlide().querySelector(".vote");
    if (!button) return;
    votes = JSON.parse(button.dataset.votes);
    Reveal.togglePause(false);
    box.showModal();
    show(0);
    find("input.before").focus();
  };
  const save = () => {
    const lines = Object.values(all).flatMap(({ slide, question, answers, before, after, date }) =>
      answers.map((answer, row) => [deck, slide, question, answer, before[row], after[row], date]));
    const table = [["deck", "slide", "question", "option", "before", "after", "date"], ...lines];
    const quote = cell => `"${String(cell).replaceAll('"', '""')}"`;
    const text = table.map(line => `${line.map(quote)}\r\n`).join("");
    const link = document.createElement("a");
    link.download = `votes_${deck}_${today()}.csv`;
    link.href = URL.createObjectURL(new Blob(["\ufeff", text], { type: "text/csv" })); // the mark tells Excel: UTF-8
    link.click();
    tell(`${link.download} is among your downloads.`);
  };
  const clear = () => {
    if (!confirm("Clear the counts of all questions of this deck? What is not saved is lost.")) return;
    all = {};
    keep();
    show(place);
  };
  const unveil = () => { shown = true; draw(); };
  const actions = { unveil, last: () => show(place - 1), next: () => show(place + 1), save, clear, close: toggle };

  const limit = count => Math.min(999, Math.max(0, count));
  const rowOf = element => element.closest("tr").sectionRowIndex;
  box.addEventListener("click", ({ target }) => {
    actions[target.dataset.do]?.();
    const { round } = target.parentElement.dataset, { add } = target.dataset;
    if (add) change(round, rowOf(target), limit(vote[round][rowOf(target)] + Number(add)));
  });
  box.addEventListener("focusin", ({ target }) => target.select?.());
  box.addEventListener("change", ({ target }) => {
    if (target.matches(".name")) change("answers", rowOf(target), target.value);
    else change(target.className, rowOf(target), limit(Math.floor(target.value)));
  });
  addEventListener("keydown", event => {
    if (!box.open) return;
    event.stopPropagation(); // the deck stays where it is
    const plain = event.key.toLowerCase() === "v" && !event.ctrlKey && !event.metaKey && !event.target.matches(".name");
    if (event.key !== "Escape" && !plain) return;
    event.preventDefault();
    toggle();
  }, true);
  for (const button of document.querySelectorAll("button.vote")) button.addEventListener("click", toggle);
  Reveal.addKeyBinding({ keyCode: 86, key: "V", description: "Vote, at a Predict slide" }, toggle);
}
