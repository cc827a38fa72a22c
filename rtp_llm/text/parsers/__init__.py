"""From generated text to what it means: reasoning, tool calls and the answer."""
