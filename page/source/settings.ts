// What the user has set. The key is kept apart, so that it never is in what a user copies or exports.

export interface Settings {
  systemPrompt: string;
  /** Empty: the server's default. Numbers are kept as typed, and sent as numbers. */
  temperature: string;
  maxTokens: string;
  topP: string;
  topK: string;
  minP: string;
  seed: string;
  presencePenalty: string;
  frequencyPenalty: string;
  repetitionPenalty: string;
  /** The JSON schema that answers obey; empty: none. */
  jsonSchema: string;
  /** Empty: the first that the server has. */
  model: string;
  thinking: "default" | "on" | "off";
  /** Tools as JSON, in the form of the chat API; empty: none. */
  tools: string;
  theme: "auto" | "light" | "dark";
  rememberKey: boolean;
}

const NAME = "rtp-llm.settings";
const KEY_NAME = "rtp-llm.api-key";

export const DEFAULTS: Settings = {
  systemPrompt: "",
  temperature: "",
  maxTokens: "",
  topP: "",
  topK: "",
  minP: "",
  seed: "",
  presencePenalty: "",
  frequencyPenalty: "",
  repetitionPenalty: "",
  jsonSchema: "",
  model: "",
  thinking: "default",
  tools: "",
  theme: "auto",
  rememberKey: false,
};

type SamplingName =
  | "temperature"
  | "maxTokens"
  | "topP"
  | "topK"
  | "minP"
  | "seed"
  | "presencePenalty"
  | "frequencyPenalty"
  | "repetitionPenalty";

interface SamplingSetting {
  name: SamplingName;
  label: string;
  /** In the body of the request. */
  field: string;
  fits(value: number): boolean;
  problem: string;
}

const MAX_SEED = 2 ** 53 - 1; // a JavaScript number is exact up to here

/** The numbers that are sent with a request, in the order in which the dialog shows them. */
export const SAMPLING: readonly SamplingSetting[] = [
  {
    name: "temperature",
    label: "Temperature",
    field: "temperature",
    fits: (value) => value >= 0 && value <= 2,
    problem: "A number from 0 to 2.",
  },
  {
    name: "topP",
    label: "Top-p",
    field: "top_p",
    fits: (value) => value > 0 && value <= 1,
    problem: "A number above 0, at most 1.",
  },
  {
    name: "topK",
    label: "Top-k",
    field: "top_k",
    fits: (value) => Number.isInteger(value) && value >= -1,
    problem: "A whole number; 0 or -1 for all tokens.",
  },
  {
    name: "minP",
    label: "Min-p",
    field: "min_p",
    fits: (value) => value >= 0 && value <= 1,
    problem: "A number from 0 to 1.",
  },
  {
    name: "maxTokens",
    label: "Max tokens",
    field: "max_tokens",
    fits: (value) => Number.isInteger(value) && value >= 1,
    problem: "A whole number, at least 1.",
  },
  {
    name: "seed",
    label: "Seed",
    field: "seed",
    fits: (value) => Number.isInteger(value) && Math.abs(value) <= MAX_SEED,
    problem: "A whole number.",
  },
  {
    name: "presencePenalty",
    label: "Presence penalty",
    field: "presence_penalty",
    fits: (value) => Math.abs(value) <= 2,
    problem: "A number from -2 to 2.",
  },
  {
    name: "frequencyPenalty",
    label: "Frequency penalty",
    field: "frequency_penalty",
    fits: (value) => Math.abs(value) <= 2,
    problem: "A number from -2 to 2.",
  },
  {
    name: "repetitionPenalty",
    label: "Repetition penalty",
    field: "repetition_penalty",
    fits: (value) => value > 0 && value <= 2,
    problem: "A number above 0, at most 2.",
  },
];

const CHOICES: Partial<Record<keyof Settings, readonly string[]>> = {
  thinking: ["default", "on", "off"],
  theme: ["auto", "light", "dark"],
};

export function loadSettings(): Settings {
  const settings: Record<string, unknown> = { ...DEFAULTS };
  let stored: unknown = null;
  try {
    stored = JSON.parse(localStorage.getItem(NAME) ?? "null");
  } catch {
    // Not ours, or storage is forbidden: the defaults.
  }
  if (typeof stored === "object" && stored !== null) {
    for (const [name, value] of Object.entries(stored)) {
      if (fits(name, value)) settings[name] = value;
    }
  }
  return settings as unknown as Settings;
}

function fits(name: string, value: unknown): boolean {
  if (!Object.hasOwn(DEFAULTS, name)) return false;
  const known = name as keyof Settings;
  const choices = CHOICES[known];
  if (choices) return choices.includes(value as string);
  return typeof value === typeof DEFAULTS[known];
}

/** `key` stays until the tab is closed, or for good if the user wants that. */
export function saveSettings(settings: Settings, key: string): void {
  try {
    localStorage.setItem(NAME, JSON.stringify(settings));
    localStorage.removeItem(KEY_NAME);
    sessionStorage.removeItem(KEY_NAME);
    if (key) (settings.rememberKey ? localStorage : sessionStorage).setItem(KEY_NAME, key);
  } catch {
    // Storage is forbidden or full; the settings hold for this visit.
  }
}

export function loadKey(): string {
  try {
    return sessionStorage.getItem(KEY_NAME) ?? localStorage.getItem(KEY_NAME) ?? "";
  } catch {
    return "";
  }
}

/** What is wrong with a value, by the setting's name; empty if all can be sent. */
export function problems(settings: Settings): Partial<Record<keyof Settings, string>> {
  const found: Partial<Record<keyof Settings, string>> = {};
  for (const { name, fits, problem } of SAMPLING) {
    const text = settings[name].trim();
    if (text && !(Number.isFinite(Number(text)) && fits(Number(text)))) found[name] = problem;
  }
  const tools = problemOfJson(settings.tools, Array.isArray, "A JSON list of tools.");
  if (tools) found.tools = tools;
  const schema = problemOfJson(settings.jsonSchema, isObject, "A JSON object.");
  if (schema) found.jsonSchema = schema;
  return found;
}

function isObject(value: unknown): boolean {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function problemOfJson(text: string, fits: (value: unknown) => boolean, problem: string): string {
  if (!text.trim()) return "";
  try {
    return fits(JSON.parse(text)) ? "" : problem;
  } catch (error) {
    return `Not JSON: ${(error as Error).message}`;
  }
}
