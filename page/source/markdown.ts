// Markdown with LaTeX to a tree of tokens. No HTML is made anywhere: views/markdown.tsx turns tokens
// into elements, and HTML that a text contains is shown as the text that it is.

import { Marked, type Token, type Tokens, type TokenizerExtension } from "marked";

export interface MathToken {
  type: "math";
  raw: string;
  text: string;
  display: boolean;
}

const INLINE = [
  { pattern: /^\\\(([\s\S]+?)\\\)/, display: false },
  { pattern: /^\\\[([\s\S]+?)\\\]/, display: true },
  { pattern: /^\$\$(?!\$)([^$]+?)\$\$/, display: true },
  // As in pandoc: "$5 and $6" is no formula.
  { pattern: /^\$(?![\s$])((?:\\[\s\S]|[^\\$\n])*?(?:\\[\s\S]|[^\\$\s]))\$(?!\d)/, display: false },
];
const BLOCK = [
  /^ {0,3}\$\$([\s\S]+?)\$\$[ \t]*(?:\n|$)/,
  /^ {0,3}\\\[([\s\S]+?)\\\][ \t]*(?:\n|$)/,
];

const inlineMath: TokenizerExtension = {
  name: "math",
  level: "inline",
  start: (source) => {
    const at = source.search(/\$|\\[([]/);
    return at < 0 ? undefined : at;
  },
  tokenizer: (source) => {
    for (const { pattern, display } of INLINE) {
      const found = pattern.exec(source);
      if (found) return mathToken(found, display);
    }
    return undefined;
  },
};

const blockMath: TokenizerExtension = {
  name: "math",
  level: "block",
  start: (source) => {
    const at = source.search(/(?<=\n) {0,3}(?:\$\$|\\\[)/);
    return at < 0 ? undefined : at;
  },
  tokenizer: (source) => {
    for (const pattern of BLOCK) {
      const found = pattern.exec(source);
      if (found) return mathToken(found, true);
    }
    return undefined;
  },
};

const reader = new Marked({ gfm: true, extensions: [blockMath, inlineMath] });

function mathToken(found: RegExpExecArray, display: boolean): Tokens.Generic {
  return { type: "math", raw: found[0], text: (found[1] ?? "").trim(), display };
}

/** The blocks of a text. One that cannot be read is a single paragraph. */
export function parse(text: string): Token[] {
  try {
    return reader.lexer(text);
  } catch {
    return [{ type: "text", raw: text, text }];
  }
}

/** The address of a link, if it leads to the web or to a mailbox. */
export function safeAddress(address: string): string | null {
  let url: URL;
  try {
    url = new URL(address);
  } catch {
    return null;
  }
  return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
}

const NAMED: Record<string, string> = {
  amp: "&",
  apos: "'",
  copy: "©",
  gt: ">",
  hellip: "…",
  laquo: "«",
  ldquo: "“",
  lsquo: "‘",
  lt: "<",
  mdash: "—",
  middot: "·",
  nbsp: "\u00a0",
  ndash: "–",
  quot: '"',
  raquo: "»",
  rdquo: "”",
  rsquo: "’",
  times: "×",
};

/** Character references of Markdown, such as &amp; and &#8212;. */
export function decodeEntities(text: string): string {
  return text.replace(
    /&(?:#(\d{1,7})|#[xX]([\da-fA-F]{1,6})|(\w{2,8}));/g,
    (all, dec, hex, name) => {
      if (name) return Object.hasOwn(NAMED, name) ? NAMED[name]! : all;
      const code = dec ? parseInt(dec, 10) : parseInt(hex, 16);
      return code > 0 && code <= 0x10ffff && !(code >= 0xd800 && code < 0xe000)
        ? String.fromCodePoint(code)
        : "\ufffd";
    },
  );
}
