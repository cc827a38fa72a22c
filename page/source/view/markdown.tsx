// Tokens of Markdown as elements. Text becomes text nodes only.

import type { MarkedToken, Token, Tokens } from "marked";
import { Component, type ComponentChildren } from "preact";
import { useMemo } from "preact/hooks";
import { type MathToken, decodeEntities, parse, safeAddress } from "../markdown";
import { Code } from "./code";
import { Formula } from "./formula";

/** `growing`: more text will come, so that blocks that do not change need not be drawn again. */
export function Markdown({ text, growing = false }: { text: string; growing?: boolean }) {
  const blocks = useMemo(() => parse(text), [text]);
  return (
    <div class="markdown">
      {blocks.map((token, index) => (
        <Block key={index} token={token} growing={growing} />
      ))}
    </div>
  );
}

class Block extends Component<{ token: Token; growing: boolean }> {
  override shouldComponentUpdate(next: { token: Token; growing: boolean }): boolean {
    // A definition further down may change what a link means: all is drawn again at the end.
    return !next.growing || next.token.raw !== this.props.token.raw;
  }

  override render() {
    return block(this.props.token);
  }
}

function all(tokens: Token[] | undefined): ComponentChildren {
  return (tokens ?? []).map(block);
}

function block(token: Token): ComponentChildren {
  const known = token as MarkedToken | MathToken;
  switch (known.type) {
    case "heading":
      return heading(known);
    case "paragraph":
      return <p>{all(known.tokens)}</p>;
    case "code":
      return <Code text={known.text} language={(known.lang ?? "").split(/\s/)[0] ?? ""} />;
    case "blockquote":
      return <blockquote>{all(known.tokens)}</blockquote>;
    case "list":
      return list(known);
    case "table":
      return table(known);
    case "hr":
      return <hr />;
    case "space":
    case "def":
      return null;
    default:
      return inline(known);
  }
}

function inline(token: MarkedToken | MathToken): ComponentChildren {
  switch (token.type) {
    case "text":
      return "tokens" in token && token.tokens ? all(token.tokens) : decodeEntities(token.text);
    case "escape":
      return token.text;
    case "strong":
      return <strong>{all(token.tokens)}</strong>;
    case "em":
      return <em>{all(token.tokens)}</em>;
    case "del":
      return <del>{all(token.tokens)}</del>;
    case "codespan":
      return <code>{token.text}</code>;
    case "br":
      return <br />;
    case "link":
      return (
        <Link address={token.href} title={token.title}>
          {all(token.tokens)}
        </Link>
      );
    case "image": // nothing is loaded from anywhere
      return (
        <Link address={token.href} title={token.title}>
          {token.text || token.href}
        </Link>
      );
    case "math":
      return <Formula text={token.text} display={token.display} />;
    case "html":
      return /^<br\s*\/?>\s*$/i.test(token.raw) ? <br /> : token.raw;
    default:
      return token.raw;
  }
}

function heading(token: Tokens.Heading) {
  // The page's own headings are the first two levels.
  const Tag = `h${Math.min(6, token.depth + 2)}` as "h3" | "h4" | "h5" | "h6";
  return <Tag class={`level-${token.depth}`}>{all(token.tokens)}</Tag>;
}

function list(token: Tokens.List) {
  const items = token.items.map((item, index) => (
    <li key={index} class={item.task ? "task" : undefined}>
      {item.task && <input type="checkbox" checked={!!item.checked} disabled />}
      {all(item.tokens.filter((each) => each.type !== "checkbox"))}
    </li>
  ));
  if (!token.ordered) return <ul>{items}</ul>;
  return <ol start={Number(token.start) || 1}>{items}</ol>;
}

function table(token: Tokens.Table) {
  const cell = (Tag: "td" | "th") => (each: Tokens.TableCell, index: number) => (
    <Tag key={index} class={each.align ? `align-${each.align}` : undefined}>
      {all(each.tokens)}
    </Tag>
  );
  return (
    <div class="table" tabIndex={0} role="region" aria-label="Table">
      <table>
        <thead>
          <tr>{token.header.map(cell("th"))}</tr>
        </thead>
        <tbody>
          {token.rows.map((row, index) => (
            <tr key={index}>{row.map(cell("td"))}</tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

interface LinkProps {
  address: string;
  title?: string | null | undefined;
  children: ComponentChildren;
}

function Link({ address, title, children }: LinkProps) {
  const safe = safeAddress(address);
  if (safe === null) return <>{children}</>;
  return (
    <a href={safe} title={title || safe} target="_blank" rel="noopener noreferrer nofollow">
      {children}
    </a>
  );
}
