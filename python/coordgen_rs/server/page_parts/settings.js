// The settings of answers: what a request says of them, and what the model's makers recommend.

const SAMPLERS = ["temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"];
const USUAL = { temperature: 0.7, min_p: 0.05 };
const SETTINGS = "coordgen-settings";
const REMEMBERED = [...SAMPLERS, "limit", "seed", "effort", "system", "prediction"];

let models = [], wereChosen = false;
let typedSystem = "";  // what the user wants of new chats, whatever the one that is shown was told

const model = () => models.find((it) => it.id === $("which").value) ?? models[0];

// The fields of a request that say how to draw; an empty field says nothing.
function sampling() {
  const found = { max_tokens: Number($("limit").value) || 1024 };
  for (const name of [...SAMPLERS, "seed"]) if ($(name).value !== "") found[name] = Number($(name).value);
  if (models.length > 1) found.model = model().id;
  return found;
}

const isGreedy = () => !(Number($("temperature").value) > 0);

function fill(values) {
  for (const name of SAMPLERS) $(name).value = values[name] ?? "";
  if (values.temperature === undefined) $("temperature").value = 0;
  advise();
}

const worded = (values) => Object.entries(values).map(([name, value]) => `${name.replaceAll("_", " ")} ${value}`).join(", ");

// What is advised: the makers' sampling, where it is another; and a word about temperature 0.
function advise() {
  const makers = model()?.recommended ?? {}, hasMakers = Object.keys(makers).length > 0;
  const isTheirs = SAMPLERS.every((name) => Number($(name).value || NEUTRAL[name]) === (makers[name] ?? NEUTRAL[name]));
  const told = [];
  if (hasMakers) told.push(isTheirs ? `As the model's makers recommend: ${worded(makers)}.`
    : `The model's makers recommend: ${worded(makers)}.`);
  if (isGreedy()) told.push("At temperature 0 an answer is always the same, and small models tend to repeat themselves.");
  $("advice").textContent = told.join(" ");
  const offer = hasMakers ? makers : USUAL;
  $("take").hidden = hasMakers ? isTheirs : !isGreedy();
  $("take").textContent = hasMakers ? "Use that" : `Use ${worded(USUAL)}`;
  $("take").onclick = () => { wereChosen = true; tell(""); fill(offer); remember(); };
}

const NEUTRAL = { temperature: 0, top_k: 0, top_p: 1, min_p: 0, repetition_penalty: 1, presence_penalty: 0, frequency_penalty: 0 };

// Where dialogues are kept, so are the settings; the key never is.
function remember() {
  if (!kept.isOn) return localStorage.removeItem(SETTINGS);
  localStorage.setItem(SETTINGS, JSON.stringify(Object.fromEntries(REMEMBERED.map((name) =>
    [name, name === "system" ? typedSystem : $(name).value]))));
}

function remembered() {
  let read = null;
  try { read = JSON.parse(localStorage.getItem(SETTINGS)); } catch { /* of another version */ }
  if (!read) return;
  for (const name of REMEMBERED) if (typeof read[name] === "string") $(name).value = read[name];
  typedSystem = $("system").value;
  wereChosen = true;
}

// Which models there are; asked again while one of them is being loaded.
async function named() {
  let told;
  try {
    told = await (await answered("v1/models")).json();
  } catch (error) {
    if (error.status !== 401) tell(error.message);
    return;
  }
  $("key-told").hidden = true;
  $("key").removeAttribute("aria-invalid");
  const chosen = $("which").value;
  models = told.data;
  $("which").replaceChildren(...models.map((it) => {
    const option = made("option", "", it.state === "ready" ? it.id : `${it.id} (${it.state})`);
    option.value = it.id;
    return option;
  }));
  if (models.some((it) => it.id === chosen)) $("which").value = chosen;
  $("which-model").hidden = models.length < 2;
  showModel();
  if (models.some((it) => it.state === "loading")) setTimeout(named, 1000);
}

function showModel() {
  const { id, recommended } = model();
  $("model").textContent = id;
  document.title = `${id} · coordgen`;
  if (!wereChosen) fill(recommended ?? {});
  advise();
}

for (const name of REMEMBERED) {
  $(name).onchange = () => {
    if (SAMPLERS.includes(name)) wereChosen = true;
    if (name === "system") typedSystem = $("system").value;
    tell("");
    advise();
    remember();
  };
}
$("key").onchange = named;
$("which").onchange = showModel;
