// The dialogues: of this visit in memory, and, if one turns that on, in the browser's database. Nothing leaves it.

const KEEPS = "coordgen-keeps", DATABASE = "coordgen", STORE = "dialogues";

const asked = (request) => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});

class Kept {
  constructor() {
    this.all = new Map();
    this.base = null;
    this.changed = () => {};
    this.others = new BroadcastChannel(DATABASE);  // tabs, which tell what they have put or removed
    this.others.onmessage = ({ data }) => this.told(data);
  }

  get isOn() { return this.base !== null; }

  // Those of earlier visits, if they are kept.
  async open() {
    if (localStorage.getItem(KEEPS) === "yes") await this.turnOn();
  }

  async turnOn() {
    const request = indexedDB.open(DATABASE, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(STORE, { keyPath: "id" });
    this.base = await asked(request);
    this.base.onversionchange = () => this.base?.close();
    try {
      for (const read of await asked(this.store("readonly").getAll())) {
        if (!this.all.has(read.id)) this.all.set(read.id, reopened(read));
      }
      localStorage.setItem(KEEPS, "yes");
      for (const dialogue of this.all.values()) await this.put(dialogue);
    } catch (error) {
      this.close();
      localStorage.removeItem(KEEPS);
      throw error;
    }
  }

  close() {
    this.base?.close();
    this.base = null;
  }

  // From now on nothing is kept, and what was is gone from the browser; this visit still has it.
  async turnOff() {
    if (this.base) await asked(this.store("readwrite").clear());
    this.close();
    localStorage.removeItem(KEEPS);
  }

  store(mode) { return this.base.transaction(STORE, mode).objectStore(STORE); }

  has(dialogue) { return this.all.get(dialogue.id) === dialogue; }

  // Another tab has changed these dialogues.
  async told(ids) {
    for (const id of this.base ? ids : []) {
      const read = await asked(this.store("readonly").get(id)), own = this.all.get(id);
      if (!read) this.all.delete(id);
      else if (own && own !== running?.dialogue) followOn(own, read);
      else if (!own) this.all.set(id, reopened(read));
    }
    this.changed();
  }

  async put(dialogue) {
    this.all.set(dialogue.id, dialogue);
    if (this.base && localStorage.getItem(KEEPS) !== "yes") this.close();  // another tab has turned it off
    if (!this.base || dialogue.current === null) return;
    const store = this.store("readwrite");
    merge(dialogue, await asked(store.get(dialogue.id)));
    await asked(store.put(dialogue));
    this.others.postMessage([dialogue.id]);
  }

  async remove(id) {
    this.all.delete(id);
    await this.removedFromBase([id], (store) => store.delete(id));
  }

  async clear() {
    const ids = [...this.all.keys()];
    this.all.clear();
    await this.removedFromBase(ids, (store) => store.clear());
  }

  async removedFromBase(ids, remove) {
    if (!this.base) return;
    await asked(remove(this.store("readwrite")));
    this.others.postMessage(ids);
  }

  // Those that hold a text, the last one first.
  found(text) {
    const wanted = text.trim().toLowerCase();
    const holds = (dialogue) => dialogue.title.toLowerCase().includes(wanted) || Object.values(dialogue.messages)
      .some((it) => it.content.toLowerCase().includes(wanted) || it.files.some((file) => file.name.toLowerCase().includes(wanted)));
    return [...this.all.values()].filter((it) => it.current !== null && (!wanted || holds(it)))
      .sort((a, b) => a.changed < b.changed ? 1 : -1);
  }
}
