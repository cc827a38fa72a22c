# SPDX-License-Identifier: Apache-2.0
"""Formats of strings, as patterns in Rust's syntax for the whole text."""

from __future__ import annotations

ANNOTATIONS = frozenset(["binary", "byte", "double", "float", "int32", "int64", "password"])
"""OpenAPI's words for how a value is kept or shown; they say nothing about a string's text."""

_LEAP = r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_DATE = (
    r"(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    r"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    rf"|{_LEAP}-02-29)"
)
# A leap second is one in UTC, so it is taken with that offset only.
_TIME = (
    r"(?:(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?"
    r"(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
    r"|23:59:60(?:\.[0-9]+)?(?:[Zz]|[+-]00:00))"
)
_DURATION_TIME = r"T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
_DURATION_DATE = r"(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)"
_BYTE = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"(?:{_BYTE}\.){{3}}{_BYTE}"
_WORD = r"[0-9A-Fa-f]{1,4}"
_LAST32 = rf"(?:{_WORD}:{_WORD}|{_IPV4})"
_IPV6 = (
    rf"(?:(?:{_WORD}:){{6}}{_LAST32}"
    rf"|::(?:{_WORD}:){{5}}{_LAST32}"
    rf"|(?:{_WORD})?::(?:{_WORD}:){{4}}{_LAST32}"
    rf"|(?:(?:{_WORD}:){{0,1}}{_WORD})?::(?:{_WORD}:){{3}}{_LAST32}"
    rf"|(?:(?:{_WORD}:){{0,2}}{_WORD})?::(?:{_WORD}:){{2}}{_LAST32}"
    rf"|(?:(?:{_WORD}:){{0,3}}{_WORD})?::{_WORD}:{_LAST32}"
    rf"|(?:(?:{_WORD}:){{0,4}}{_WORD})?::{_LAST32}"
    rf"|(?:(?:{_WORD}:){{0,5}}{_WORD})?::{_WORD}"
    rf"|(?:(?:{_WORD}:){{0,6}}{_WORD})?::)"
)
# Two hyphens in the third and fourth place are kept for A-labels, which need more than a pattern.
_LABEL = (
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9]|[A-Za-z0-9-][A-Za-z0-9]"
    r"|[A-Za-z0-9-](?:[A-Za-z0-9][A-Za-z0-9-]|-[A-Za-z0-9])[A-Za-z0-9-]{0,58}[A-Za-z0-9]"
    r"|[A-Za-z0-9-]{2}[A-Za-z0-9])?)"
)
_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_QUOTED = r'"(?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\[\x20-\x7e])*"'
_PCT = r"%[0-9A-Fa-f]{2}"
_PLANES = "".join(rf"\x{{{n:x}0000}}-\x{{{n:x}fffd}}" for n in range(1, 14))
_UCS = r"\x{a0}-\x{d7ff}\x{f900}-\x{fdcf}\x{fdf0}-\x{ffef}" + _PLANES + r"\x{e1000}-\x{efffd}"
_PRIVATE = r"\x{e000}-\x{f8ff}\x{f0000}-\x{ffffd}\x{100000}-\x{10fffd}"


def _uri(more: str = "", private: str = "") -> tuple[str, str]:
    """A URI and a relative reference (RFC 3986), or with `more` characters an IRI (RFC 3987)."""
    letter = rf"A-Za-z0-9._~!$&'()*+,;={more}\-"
    pchar = rf"(?:[{letter}:@]|{_PCT})"
    user = rf"(?:(?:[{letter}:]|{_PCT})*@)?"
    future = r"[Vv][0-9A-Fa-f]+\.[A-Za-z0-9._~!$&'()*+,;=:-]+"
    host = rf"(?:\[(?:{_IPV6}|{future})\]|(?:[{letter}]|{_PCT})*)"
    authority = rf"//{user}{host}(?::[0-9]*)?"
    tail = rf"(?:\?(?:{pchar}|[/?{private}])*)?(?:#(?:{pchar}|[/?])*)?"
    rest = rf"(?:/{pchar}*)*"
    absolute = rf"{authority}{rest}|/(?:{pchar}+{rest})?"
    segment = rf"(?:[{letter}@]|{_PCT})+"
    return (
        rf"[A-Za-z][A-Za-z0-9+.-]*:(?:{absolute}|{pchar}+{rest}|){tail}",
        rf"(?:{absolute}|{segment}{rest}|){tail}",
    )


_URI, _RELATIVE = _uri()
_IRI, _RELATIVE_IRI = _uri(_UCS, _PRIVATE)
# RFC 6570, without the operators that it keeps for extensions.
_VARIABLE = rf"(?:[A-Za-z0-9_]|{_PCT})+(?:\.(?:[A-Za-z0-9_]|{_PCT})+)*(?::[1-9][0-9]{{0,3}}|\*)?"
_EXPRESSION = rf"\{{[+#./;?&]?{_VARIABLE}(?:,{_VARIABLE})*\}}"
_VERBATIM = rf"(?:[!#$&(-;=?-\[\]_a-z~{_UCS}{_PRIVATE}]|{_PCT})"
# Labels of small letters, as IDNA 2008 wants them, without marks and what depends on neighbours.
_IDN_LABEL = r"(?:[a-z0-9\p{Ll}\p{Lo}](?:[a-z0-9\p{Ll}\p{Lo}-]{0,61}[a-z0-9\p{Ll}\p{Lo}])?)"
_IDN_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~\x{a0}-\x{10ffff}-]+"
_POINTER = r"(?:/(?:[^/~]|~[01])*)*"

FORMATS = {
    "date": _DATE,
    "date-time": rf"{_DATE}[Tt]{_TIME}",
    "duration": rf"P(?:{_DURATION_DATE}(?:{_DURATION_TIME})?|{_DURATION_TIME}|[0-9]+W)",
    "email": (
        rf"(?:{_ATOM}(?:\.{_ATOM})*|{_QUOTED})@"
        rf"(?:{_LABEL}(?:\.{_LABEL})*|\[(?:{_IPV4}|IPv6:{_IPV6})\])"
    ),
    "hostname": rf"{_LABEL}(?:\.{_LABEL})*",
    "idn-email": rf"{_IDN_ATOM}(?:\.{_IDN_ATOM})*@{_IDN_LABEL}(?:\.{_IDN_LABEL})*",
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "iri": _IRI,
    "iri-reference": rf"(?:{_IRI}|{_RELATIVE_IRI})",
    "json-pointer": _POINTER,
    "relative-json-pointer": rf"(?:0|[1-9][0-9]*)(?:#|{_POINTER})",
    "time": _TIME,
    "uri": _URI,
    "uri-reference": rf"(?:{_URI}|{_RELATIVE})",
    "uri-template": rf"(?:{_VERBATIM}|{_EXPRESSION})*",
    "uuid": r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}",
}
