// Watches a page while an answer streams: its frames, its long tasks, and where its reader is.
window.watched = { gaps: [], places: [], longest: 0, isOver: false };
new PerformanceObserver((list) => {
  for (const it of list.getEntries()) watched.longest = Math.max(watched.longest, it.duration);
}).observe({ type: "longtask" });
let last = performance.now(), began = false;
const tick = (now) => {
  watched.gaps.push(now - last);
  last = now;
  began ||= running !== null;
  if (running || !began) requestAnimationFrame(tick);
  else setTimeout(() => { watched.isOver = true; }, 200);
  if (watched.place !== undefined) watched.places.push(document.getElementById("log").scrollTop);
};
requestAnimationFrame((now) => { last = now; requestAnimationFrame(tick); });
