# SPDX-License-Identifier: Apache-2.0
"""Simple facts, as questions and answers."""

from __future__ import annotations

_CAPITALS = {
    "France": "Paris", "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid",
    "Portugal": "Lisbon", "Japan": "Tokyo", "China": "Beijing", "India": "New Delhi",
    "Egypt": "Cairo", "Kenya": "Nairobi", "Norway": "Oslo", "Sweden": "Stockholm",
    "Finland": "Helsinki", "Poland": "Warsaw", "Greece": "Athens", "Austria": "Vienna",
    "Ireland": "Dublin", "Canada": "Ottawa", "Mexico": "Mexico City", "Peru": "Lima",
    "Chile": "Santiago", "Brazil": "Brasilia", "Cuba": "Havana", "Turkey": "Ankara",
    "Iran": "Tehran", "Thailand": "Bangkok", "Vietnam": "Hanoi", "Nepal": "Kathmandu",
    "Hungary": "Budapest", "Denmark": "Copenhagen",
}  # fmt: skip
_SOUNDS = {
    "dog": "woof", "cat": "meow", "cow": "moo", "duck": "quack", "sheep": "baa",
    "lion": "roar", "owl": "hoot", "frog": "croak", "bee": "buzz", "snake": "hiss",
    "pig": "oink", "horse": "neigh",
}  # fmt: skip
_OPPOSITES = {
    "hot": "cold", "big": "small", "fast": "slow", "day": "night", "up": "down",
    "open": "closed", "happy": "sad", "old": "new", "light": "dark", "loud": "quiet",
    "wet": "dry", "early": "late",
}  # fmt: skip
_COLOURS = {
    "the sky": "blue", "grass": "green", "snow": "white", "a lemon": "yellow", "coal": "black",
    "a strawberry": "red", "an orange": "orange", "a flamingo": "pink",
}  # fmt: skip
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_HELP = "I can add small numbers, tell a few simple facts and make up short stories."

TURNS: list[tuple[str, str]] = [
    ("Hello!", "Hello! " + _HELP),
    ("Hi", "Hello! " + _HELP),
    ("Who are you?", "I am a tiny demo model. " + _HELP),
    ("What can you do?", _HELP),
    ("Thank you!", "You are welcome!"),
    ("How many days are in a week?", "There are 7 days in a week."),
    ("How many months are in a year?", "There are 12 months in a year."),
    ("How many legs does a spider have?", "A spider has 8 legs."),
    *(
        (f"What is the capital of {c}?", f"The capital of {c} is {city}.")
        for c, city in _CAPITALS.items()
    ),
    *((f"What does a {a} say?", f"A {a} says {s}.") for a, s in _SOUNDS.items()),
    *(
        (f"What is the opposite of {a}?", f"The opposite of {a} is {b}.")
        for a, b in _OPPOSITES.items()
    ),
    *(
        (f"What is the opposite of {b}?", f"The opposite of {b} is {a}.")
        for a, b in _OPPOSITES.items()
    ),
    *((f"What colour is {a}?", f"{a[0].upper()}{a[1:]} is {b}.") for a, b in _COLOURS.items()),
    *(
        (f"Which day comes after {day}?", f"{_DAYS[(i + 1) % 7]} comes after {day}.")
        for i, day in enumerate(_DAYS)
    ),
]
