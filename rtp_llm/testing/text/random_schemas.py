# SPDX-License-Identifier: Apache-2.0
"""Random JSON schemas over every supported keyword, and values that come near them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

NAMES = ("a", "b", "kind", "x-1", 'q"t', "é")
WORDS = (
    "",
    "a",
    "ab",
    "abc",
    "a1",
    "é",
    'q"t',
    "b\\c",
    "x\ny",
    "2024-02-29",
    "10.0.0.1",
    "zzz",
    "\t",
)
NUMBERS = (0, 1, 2, 3, 5, 0.5, 10, -1, -4, 6, 1.5, 2.25, -0.1, 100, 12, 4)
PATTERNS = ("^a", "b$", "^[a-c]+$", "^a|b$", "[0-9]", r"^\w{1,3}$", r"^[^\d]*$", "a.*b", '"')
FORMATS = ("date", "ipv4", "ipv6", "uuid")
FEW = (
    {"type": "boolean"},
    {"enum": ["a", "ab", 1, None]},
    {"type": ["null", "boolean"]},
    {"type": "integer", "minimum": 1, "maximum": 4},
)
TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")


class SchemaMaker:
    """One random schema; equal seeds make equal ones."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._definitions: dict[str, Any] = {}

    def schema(self) -> dict[str, Any]:
        """The schema, with its definitions."""
        made = self._schema(3)
        body: dict[str, Any] = made if isinstance(made, dict) else {"type": "object"}
        if self._chance(0.3):
            name = self._random.choice(("t", "n/a"))
            leaf = self._chance(0.3)
            self._definitions[name] = {"type": "integer"} if leaf else self._tree(name)
            reference = {"$ref": "#/$defs/" + name.replace("/", "~1")}
            body = (
                {"anyOf": [body, reference]} if self._chance(0.5) else {"items": reference, **body}
            )
        if self._chance(0.1):
            body = {"$id": "https://example.com/made", "allOf": [body, self._generic()]}
        return {**body, **({"$defs": self._definitions} if self._definitions else {})}

    def _generic(self) -> dict[str, Any]:
        """A list whose items are those of the outermost resource that names them."""
        anchor, of_items = {"$dynamicAnchor": "item"}, {"$dynamicRef": "#item"}
        generic = {"$id": "list", "items": of_items, "$defs": {"any": anchor}}
        typed = {"$id": "typed", "$ref": "list", "$defs": {"own": {**anchor, "type": "integer"}}}
        named = {"$anchor": "named", "$ref": "typed"}
        self._definitions |= {"list": generic, "typed": typed, "named": named}
        if self._chance(0.5):
            self._definitions["item"] = {**anchor, "type": ["string", "null"]}
        inner = {"$ref": self._random.choice(("list", "typed", "#named"))}
        return self._random.choice((inner, {"properties": {"a": inner}}))

    def _tree(self, name: str) -> dict[str, Any]:
        own = {"$ref": "#/$defs/" + name.replace("/", "~1")}
        properties = {"a": own, "b": self._schema(1)}
        return {"type": "object", "properties": properties, "additionalProperties": False}

    def _schema(self, depth: int) -> Any:
        if depth == 0 or self._chance(0.1):
            return self._random.choice(
                (True, {}, {"type": "null"}, {"type": "boolean"}, {"const": self._value()})
            )
        choice = self._random.random()
        if choice < 0.1:
            return {"enum": [self._value() for _ in range(self._random.randint(1, 4))]}
        if choice < 0.28:
            return self._applied(depth)
        kind = self._random.choice(TYPES)
        kinds = [kind, self._random.choice(TYPES)] if self._chance(0.15) else kind
        return {**({} if self._chance(0.1) else {"type": kinds}), **self._keywords(kind, depth)}

    def _keywords(self, kind: str, depth: int) -> dict[str, Any]:
        made: Callable[[int], dict[str, Any]] | None = {
            "integer": self._number,
            "number": self._number,
            "string": self._string,
            "array": self._array,
            "object": self._object,
        }.get(kind)
        return made(depth) if made else {}

    def _number(self, _: int) -> dict[str, Any]:
        pick = self._random.choice
        found: dict[str, Any] = {}
        if self._chance(0.5):
            found[pick(("minimum", "exclusiveMinimum"))] = pick(NUMBERS[:11])
        if self._chance(0.5):
            found[pick(("maximum", "exclusiveMaximum"))] = pick(NUMBERS)
        if self._chance(0.3):
            found["multipleOf"] = pick((2, 3, 0.5, 0.1, 1.5))
        return found

    def _string(self, _: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self._chance(0.4):
            found["minLength"] = self._random.randint(0, 3)
        if self._chance(0.4):
            found["maxLength"] = self._random.randint(1, 5)
        if self._chance(0.3):
            found["pattern"] = self._random.choice(PATTERNS)
        elif self._chance(0.2):
            found["format"] = self._random.choice(FORMATS)
        return found

    def _array(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self._chance(0.7):
            found["items"] = self._schema(depth - 1)
        if self._chance(0.3):
            count = self._random.randint(1, 2)
            found["prefixItems"] = [self._schema(depth - 1) for _ in range(count)]
        if self._chance(0.3):
            found["minItems"] = self._random.randint(0, 2)
        if self._chance(0.4):
            found["maxItems"] = self._random.randint(0, 4)
        if self._chance(0.2):
            found |= {"contains": self._schema(1), **self._counts()}
        if self._chance(0.1):
            found |= {"uniqueItems": True, "items": self._random.choice(FEW)}
        elif self._chance(0.05):
            found |= {"uniqueItems": True, "maxItems": 1}
        if self._chance(0.1) and "items" not in found:
            found["unevaluatedItems"] = self._schema(1)
        return found

    def _counts(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self._chance(0.3):
            found["minContains"] = self._random.randint(0, 2)
        if self._chance(0.3):
            found["maxContains"] = self._random.randint(0, 2)
        return found

    def _object(self, depth: int) -> dict[str, Any]:
        names = self._random.sample(NAMES, self._random.randint(0, 3))
        found: dict[str, Any] = {"properties": {name: self._schema(depth - 1) for name in names}}
        if self._chance(0.5):
            found["required"] = self._random.sample(NAMES, self._random.randint(0, 2))
        if self._chance(0.5):
            found["additionalProperties"] = self._random.choice((False, self._schema(depth - 1)))
        elif self._chance(0.15):
            found["unevaluatedProperties"] = False
        if self._chance(0.15):
            found["patternProperties"] = {self._random.choice(PATTERNS): self._schema(depth - 1)}
        elif self._chance(0.15):
            found["propertyNames"] = self._random.choice(
                ({"pattern": "^[a-k]"}, {"maxLength": 2}, {"enum": ["a", "b", "new"]})
            )
        if self._chance(0.15):
            found["minProperties"] = self._random.choice((0, 1, 1, 2))
        if self._chance(0.15):
            found["maxProperties"] = self._random.randint(1, 3)
        if self._chance(0.12):
            one, other = self._random.sample(NAMES, 2)
            found["dependentRequired"] = {one: [other]}
        if self._chance(0.1):
            found["dependentSchemas"] = {self._random.choice(NAMES): self._partial()}
        return found

    def _partial(self) -> dict[str, Any]:
        """A subschema of an object that can be combined with others."""
        name = self._random.choice(NAMES)
        return self._random.choice(
            ({"required": [name]}, {"properties": {name: self._schema(1)}}, {"maxProperties": 2})
        )

    def _applied(self, depth: int) -> dict[str, Any]:
        kind = self._random.choice(("anyOf", "anyOf", "oneOf", "oneOf", "allOf", "not", "if"))
        base = {} if self._chance(0.4) else self._keywords_of_some_type(depth)
        if kind == "not":
            some: tuple[dict[str, Any], ...] = (
                {"type": "null"},
                {"enum": ["a", 1]},
                {"required": ["a"]},
                {"maximum": 3},
                {"contains": {"type": "string"}, "minContains": self._random.randint(1, 2)},
            )
            return {**base, "not": self._random.choice((*some, {"type": ["string", "array"]}))}
        if kind == "if":
            condition = {"properties": {"kind": {"const": "a"}}, "required": ["kind"]}
            branches = {"then": self._partial(), "else": self._partial()}
            return {"type": "object", "if": condition, **branches}
        if kind == "allOf" and base.get("type") == "object":
            base.pop("additionalProperties", None)
            rest = {"unevaluatedProperties": False} if self._chance(0.5) else {}
            return {**base, "allOf": [self._partial(), self._partial()], **rest}
        if kind == "anyOf" and self._chance(0.2):
            either = [{"properties": {name: self._schema(1)}} for name in ("a", "b")]
            return {"type": "object", kind: either, "unevaluatedProperties": False}
        if kind == "oneOf" and self._chance(0.5):
            return {"oneOf": [self._tagged(word, depth) for word in ("a", "b")]}
        return {**base, kind: [self._schema(depth - 1) for _ in range(2)]}

    def _keywords_of_some_type(self, depth: int) -> dict[str, Any]:
        kind = self._random.choice(TYPES)
        return {"type": kind, **self._keywords(kind, depth - 1)}

    def _tagged(self, word: str, depth: int) -> dict[str, Any]:
        properties = {"kind": {"const": word}, "b": self._schema(depth - 1)}
        return {"type": "object", "properties": properties, "required": ["kind"]}

    def _value(self) -> Any:
        return ValueMaker(self._random, {}).any(1)

    def _chance(self, probability: float) -> bool:
        return self._random.random() < probability


class ValueMaker:
    """Values near a schema: made of the names and constants that stand in it."""

    def __init__(self, source: random.Random, schema: Any) -> None:
        self._random = source
        self._values: list[Any] = [*WORDS, *NUMBERS, None, True, False]
        self._names: list[str] = [*NAMES]
        self._collect(schema)

    def _collect(self, schema: Any) -> None:
        if isinstance(schema, dict):
            for key, value in schema.items():
                if key == "enum" and isinstance(value, list):
                    self._values += value * 3
                elif key == "const":
                    self._values += [value] * 3
                elif isinstance(value, (int, float)) and not isinstance(value, bool):
                    self._values += [value, value + 1, value - 1]
                elif key == "properties":
                    self._names += list(value) * 3
                self._collect(value)
        elif isinstance(schema, list):
            for value in schema:
                self._collect(value)

    def any(self, depth: int) -> Any:
        """A value of any type."""
        choice = self._random.random()
        if depth and choice < 0.25:
            return [self.any(depth - 1) for _ in range(self._random.randint(0, 3))]
        if depth and choice < 0.6:
            names = self._random.sample(self._names, self._random.randint(0, 3))
            return {name: self.any(depth - 1) for name in names}
        return self._random.choice(self._values)

    def near(self, value: Any, depth: int = 2) -> Any:
        """`value` with one place changed."""
        if isinstance(value, dict) and value and self._random.random() < 0.8:
            name = self._random.choice(list(value))
            rest = {key: each for key, each in value.items() if key != name}
            if self._random.random() < 0.3:
                return rest
            if self._random.random() < 0.3:
                return {**value, self._random.choice(self._names): self.any(1)}
            return {**value, name: self.near(value[name], depth)}
        if isinstance(value, list) and value and self._random.random() < 0.8:
            place = self._random.randrange(len(value))
            if self._random.random() < 0.3:
                return value[:place] + value[place + 1 :]
            if self._random.random() < 0.3:
                return [*value, self._random.choice((value[place], self.any(1)))]
            return [*value[:place], self.near(value[place], depth), *value[place + 1 :]]
        if isinstance(value, str) and self._random.random() < 0.6:
            return self._random.choice((value + "b", value[:-1], "a" + value, value.upper()))
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return value + self._random.choice((1, -1, 0.5, 10))
        return self.any(depth)
