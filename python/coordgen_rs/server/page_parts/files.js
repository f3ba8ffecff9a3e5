// Files that are dropped into the message, or chosen: their text goes with it.

const MOST_FILE_BYTES = 4 << 20;
let attached = [];

async function attach(files) {
  for (const file of files) {
    try {
      attached.push({ name: file.name, text: await textOfFile(file) });
    } catch (error) {
      tell(`${file.name}: ${error.message}`);
    }
  }
  showAttached();
  $("text").focus();
}

async function textOfFile(file) {
  if (file.size > MOST_FILE_BYTES) throw new Error("it has more than 4 MiB");
  const bytes = await file.arrayBuffer();
  let text;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    throw new Error("it is no text in UTF-8");
  }
  if (text.includes("\0")) throw new Error("it is no text");
  return text.replace(/\r\n/g, "\n");
}

function showAttached() {
  $("files").replaceChildren(...attached.map((file) => {
    const chip = made("li", "chip", `${shown(file.name)} `);
    const remove = button("\u00d7", "", () => {
      attached = attached.filter((it) => it !== file);
      showAttached();
      $("text").focus();
    });
    remove.setAttribute("aria-label", `Leave out ${file.name}`);
    chip.append(remove);
    return chip;
  }));
}

$("attach").onclick = () => $("file").click();
$("file").onchange = () => {
  attach([...$("file").files]);
  $("file").value = "";
};
addEventListener("dragover", (event) => {
  if (!event.dataTransfer?.types.includes("Files")) return;
  event.preventDefault();
  document.body.classList.add("dropping");
});
addEventListener("dragleave", (event) => { if (!event.relatedTarget) document.body.classList.remove("dropping"); });
addEventListener("drop", (event) => {
  document.body.classList.remove("dropping");
  if (!event.dataTransfer?.files.length) return;
  event.preventDefault();
  attach([...event.dataTransfer.files]);
});
