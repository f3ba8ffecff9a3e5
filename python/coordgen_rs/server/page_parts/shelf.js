// The list of dialogues: kept or not, searched, exported, imported, cleared.

function listDialogues() {
  $("unkept").hidden = kept.isOn || !kept.found("").length;
  if ($("shelf").hidden) return;
  $("keep").checked = kept.isOn;
  const found = kept.found($("search").value);
  $("dialogues").replaceChildren(...found.map((it) => {
    const line = made("li"), open = button(shown(it.title) || "(no title)", `Changed ${new Date(it.changed).toLocaleString()}`,
      () => opened(it));
    if (it === dialogue) open.setAttribute("aria-current", "true");
    const remove = button("\u00d7", "", () => removed(it));
    remove.setAttribute("aria-label", `Delete ${it.title}`);
    line.append(open, remove);
    return line;
  }));
  $("none").hidden = found.length > 0;
  $("none").textContent = $("search").value.trim() ? "No dialogue holds this." : "No dialogue yet.";
}

async function removed(it) {
  if (!confirm(`Delete "${shown(it.title) || "(no title)"}"? It cannot be brought back.`)) return;
  await done(kept.remove(it.id));
  if (it === dialogue) anew();
  listDialogues();
}

// What the browser's database refuses is told, and nothing of this visit is lost.
async function done(promise) {
  try {
    await promise;
    return true;
  } catch (error) {
    tell(`The browser does not keep it: ${error.message || error.name}`);
    return false;
  }
}

function opened(it) {
  if (it !== dialogue) {
    stopped();
    views.clear();
    dialogue = it;
    $("system").value = it.system;
    show();
    listDialogues();
  }
  if (isCovering()) toggleShelf(false);
}

// Whether the list, where it is open, lies over the dialogue.
const isCovering = () => matchMedia("(max-width: 60rem)").matches;

function toggleShelf(isOpen, focused = $(isOpen ? "search" : "shelves")) {
  $("shelf").hidden = !isOpen;
  $("shelves").setAttribute("aria-expanded", String(isOpen));
  document.body.classList.toggle("with-shelf", isOpen);
  listDialogues();
  focused.focus();
}

$("shelves").onclick = () => toggleShelf($("shelf").hidden);
$("shut").onclick = () => toggleShelf(false);
document.addEventListener("click", (event) => {
  const isBeside = !event.composedPath().some((it) => it === $("shelf") || it === $("shelves"));
  if (isBeside && isCovering() && !$("shelf").hidden) toggleShelf(false, document.activeElement);
});
$("shelf").onkeydown = (event) => { if (event.key === "Escape") { event.stopPropagation(); toggleShelf(false); } };
$("search").oninput = listDialogues;
async function keep(isWanted) {
  const isDone = await done(isWanted ? kept.turnOn() : kept.turnOff());
  if (isDone) tell(kept.isOn ? "Dialogues are kept in this browser from now on." : "Nothing is kept in this browser any more.");
  remember();
  listDialogues();
}

$("keep").onchange = () => keep($("keep").checked);
$("keep-them").onclick = () => keep(true).then(() => $("text").focus());
$("export").onclick = () => {
  const all = kept.found("");
  if (!all.length) return tell("There is no dialogue to export.");
  downloaded("coordgen-dialogues.json", JSON.stringify(all, null, 1));
};
$("export-one").onclick = () => {
  if (dialogue.current === null) return tell("There is no dialogue to export.");
  downloaded("coordgen-dialogue.json", JSON.stringify(dialogue, null, 1));
};
$("import").onclick = () => $("imported").click();
$("imported").onchange = async () => {
  const [file] = $("imported").files;
  $("imported").value = "";
  try {
    if (file.size > MOST_IMPORTED) throw new Error("it has more than 64 MiB");
    const found = imported(await file.text());
    for (const it of found) if (!await done(kept.put(it))) break;
    opened(found[0]);
    tell(found.length === 1 ? "One dialogue was imported." : `${found.length} dialogues were imported.`);
  } catch (error) {
    tell(`${file.name} cannot be imported: ${error.message}`);
  }
};
$("clear").onclick = async () => {
  const before = [...kept.all.values()];
  if (!await done(kept.clear())) return;
  anew();
  listDialogues();
  tell("All dialogues are gone. ");
  $("note").append(button("Undo", "", async () => {
    for (const it of before) if (!await done(kept.put(it))) return;
    tell("They are back.");
    listDialogues();
  }));
};
