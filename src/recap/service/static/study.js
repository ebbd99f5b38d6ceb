// One case as one bundle scored it: its pictures, maps, decision, threshold, level and regions.

import { address, getJson, getMap, getPicture } from "./api.js";
import { byPeak, findRegions } from "./regions.js";
import { decide } from "./threshold.js";

const KEPT_SLICES = 60;
// A damaged spacing must not make a line of a picture.
const MOST_STRETCHED = 20;

export class Study extends EventTarget {
  #kept = new Map();
  #scan = 0;
  highlight = null;
  isScanning = false;
  /** Why the regions at the level are not known, if they could not be looked for. */
  scanError = null;
  own = null;

  constructor(job, found, bundle) {
    super();
    this.job = job;
    this.case = found;
    this.bundle = bundle;
    // A bundle may have been calibrated anew, or replaced, since: its threshold is not this case's.
    this.isOtherCalibration =
      (bundle.calibration_digest ?? "") !== (found.calibration_digest ?? "");
    this.calibration = this.isOtherCalibration ? null : (bundle.calibration ?? null);
    const [low, high] = found.scale;
    this.givenLevel = found.level ?? low + 0.5 * (high - low);
    this.level = this.givenLevel;
    this.threshold = this.calibration?.threshold ?? null;
    if (!this.isCalibrated) this.#rescan();
  }

  /** How much higher than wide a pixel is in the patient: 1 where the file does not say. */
  get pixelAspect() {
    const [rowMm, columnMm] = this.case.spacing_mm ?? [1, 1];
    return Math.min(MOST_STRETCHED, Math.max(1 / MOST_STRETCHED, rowMm / columnMm));
  }

  /** Whether the service found regions; otherwise they are found here, at half of the scale. */
  get isCalibrated() {
    return this.case.level !== null && this.case.level !== undefined;
  }

  /** All cases of a job, with the bundle that scored them; null instead of a study where it failed. */
  static async open(id) {
    const [job, cases, bundles] = await Promise.all([
      getJson(address("jobs", id)),
      getJson(address("jobs", id, "cases")),
      getJson(address("bundles")),
    ]);
    const bundle = bundles.find((one) => one.name === job.bundle) ?? {
      name: job.bundle,
      calibration: null,
    };
    return { job, cases, study: (found) => new Study(job, found, bundle) };
  }

  /** The address of something of this case. */
  at(...parts) {
    return address("jobs", this.job.id, "cases", this.case.id, ...parts);
  }

  /** A slice's picture and map, from memory if it was shown lately. */
  slice(n) {
    const kept =
      this.#kept.get(n) ?? Promise.all([getPicture(this.at("image", `${n}.png`)), this.#map(n)]);
    this.#kept.delete(n);
    this.#kept.set(n, kept);
    kept.catch(() => this.#kept.delete(n));
    if (this.#kept.size > KEPT_SLICES) this.#kept.delete(this.#kept.keys().next().value);
    return kept;
  }

  /** Fetch the neighbours before they are asked for. */
  ahead(n) {
    for (const next of [n + 1, n - 1]) {
      if (next >= 0 && next < this.case.images) this.slice(next).catch(() => {});
    }
  }

  get regions() {
    return this.own ?? this.case.regions ?? [];
  }

  /** The decision at the threshold as it stands now; null without calibration. */
  get decision() {
    return decide(this.case, this.calibration, this.threshold);
  }

  get isMoved() {
    return (
      this.threshold !== (this.calibration?.threshold ?? null) || this.level !== this.givenLevel
    );
  }

  set(values) {
    Object.assign(this, values);
    if ("level" in values) this.#rescan();
    this.dispatchEvent(new Event("change"));
  }

  /** Step through the regions, going to each. */
  step(by, view) {
    const { regions } = this;
    if (!regions.length) return;
    const now = regions.indexOf(this.highlight);
    this.show(
      regions[(now + by + regions.length + (now < 0 && by < 0 ? 1 : 0)) % regions.length],
      view,
    );
  }

  /** Highlight a region and bring it into view. */
  show(region, view) {
    const [height, width] = this.case.size_hw;
    const [left, top, right, bottom] = region.box_xyxy_px;
    this.set({ highlight: region });
    view.goTo(region.image, [left / width, top / height, right / width, bottom / height]);
  }

  reset() {
    this.set({ threshold: this.calibration?.threshold ?? null, level: this.givenLevel });
  }

  async #map(n) {
    return getMap(this.at("map", `${n}.f32`));
  }

  /** Find the regions at the new level in all slices, from the maps; the newest request wins.
   * Until they are found those of the level before stay, and the study says that it is looking. */
  async #rescan() {
    const turn = ++this.#scan;
    this.highlight = null;
    this.scanError = null;
    this.isScanning = !(this.level === this.givenLevel && this.isCalibrated);
    if (!this.isScanning) {
      this.own = null;
      return;
    }
    await new Promise((resolve) => setTimeout(resolve, 120));
    let [found, failure] = [[], null];
    try {
      found = await this.#regionsAtLevel(turn);
    } catch (error) {
      failure = error;
    }
    if (turn !== this.#scan) return;
    this.own = byPeak(found); // none, if it failed: those of the level before are not of this one
    this.scanError = failure;
    this.highlight = null; // one that was chosen meanwhile is of the level before
    this.isScanning = false;
    this.dispatchEvent(new Event("change"));
  }

  /** Slice by slice, until another request comes. */
  async #regionsAtLevel(turn) {
    const found = [];
    for (let n = 0; n < this.case.images && turn === this.#scan; n++) {
      const map = this.#kept.has(n) ? (await this.slice(n))[1] : await this.#map(n);
      found.push(...findRegions(map, this.level, { image: n, mm2PerPx: this.#mm2PerPx() }).regions);
    }
    return found;
  }

  #mm2PerPx() {
    if (this.case.spacing_mm) return this.case.spacing_mm[0] * this.case.spacing_mm[1];
    const told = (this.case.regions ?? []).find((region) => region.area_mm2);
    return told ? told.area_mm2 / told.area_px : null;
  }
}
