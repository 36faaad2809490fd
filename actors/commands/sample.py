"""The small conversation that `perdure demo` plays: somebody plans a birthday picnic by the lake."""

from typing import Any

LINES: tuple[tuple[str, str], ...] = (
    (
        "user",
        "My grandmother turns eighty on the 14th and I want to give her a picnic by the lake. About twenty people, "
        "three of them small children, two who cannot walk far. Where do I begin?",
    ),
    (
        "assistant",
        "With the spot, since everything else hangs on it. You want shade after noon, a flat path from the car park for "
        "the two who cannot walk far, toilets within five minutes, and a bank where children can be seen from the "
        "tables. The north shore usually has all four; the beach side has the better view but no shade. If you tell me "
        "how you feel about rain, I can also say whether you need a roof nearby.",
    ),
    (
        "user",
        "North shore then. There is a boathouse with a porch that the rowing club lends out, so rain would be fine. It "
        "holds fifteen sitting and the rest standing.",
    ),
    (
        "assistant",
        "The boathouse settles the question of rain. Ask the rowing club for the porch from eleven to five, and whether "
        "their benches may be carried outside; that saves you hiring chairs for the ones who sit on grass badly. Ask "
        "also where a car may stop for two minutes, so that your grandmother is driven to the door and not to the car "
        "park. Write down the name of whoever says yes: clubs forget, and a name helps on the day.",
    ),
    ("user", "Done, Mrs Albrecht says yes to all of it and the key hangs at number 9. Food next. No caterer, please."),
    (
        "assistant",
        "Then share it out, but do not let people choose freely or you get nine potato salads. Give each household one "
        "line of a list: two potato salads, one green salad, bread for twenty, cold roast for twelve, something warm in "
        "a thick pot for those who want it, two fruit plates cut small for the children, and the cake. Keep drinks in "
        "your own hands, because they are heavy and the quantity matters: reckon a litre and a half a head on a hot day, "
        "half of it plain water. Ask about allergies in the same message that hands out the lines.",
    ),
    (
        "user",
        "My cousin Jo cannot eat nuts and two are vegetarian. The cake is the thing I worry about: she loves her own "
        "hazelnut cake, the recipe from the blue notebook.",
    ),
    (
        "assistant",
        "Bake it as she knows it, since it is her day, and make it impossible to mix up: its own table, its own knife, a "
        "small card that says hazelnuts. Beside it put a plain lemon cake that Jo and the children can eat without "
        "asking. For the two vegetarians the warm pot decides: make it lentils with vegetables and offer the sausages "
        "separately, then nobody has to be a special case. Bake the hazelnut cake two days before; it is better then, "
        "and you sleep better too.",
    ),
    ("user", "Good. And what do we do all afternoon? She gets tired after an hour of people talking at her."),
    (
        "assistant",
        "Give the afternoon a shape with quiet in it. From twelve to one everybody eats. At one, three people say "
        "something, two minutes each and no more. Then an hour in which nobody has to do anything: the children get "
        "boats made of bark to race at the shallow end, and she gets a chair under the lime tree with one visitor at a "
        "time. At three the cake, and one song that all of you know. By four she can be home, and whoever wants stays "
        "to tidy up.",
    ),
    ("user", "One visitor at a time is lovely. Who makes sure of that without being rude?"),
    (
        "assistant",
        "A child. Give the oldest of the three a bell and a list of names, and let her fetch the next visitor when the "
        "bell rings. Nobody argues with a seven-year-old who takes her office seriously, and your grandmother will "
        "enjoy the ceremony. Ten minutes a visit and a pause after every second one is about right. Tell the child "
        "beforehand that grandmother herself may skip the bell whenever she likes.",
    ),
    ("user", "That is Mia, she will be unbearable with pride. What have I forgotten?"),
    (
        "assistant",
        "Small things: a bin bag for each table, a cloth for wet children, sun cream, a charged phone, the name of the "
        "nearest doctor, and cushions for the benches. One larger thing: somebody who takes pictures so that you do not "
        "have to. And a date: send the list of dishes by Sunday, because people shop on Saturday. After that you may "
        "forget all about it until the cake.",
    ),
)


def messages(prefix: str) -> list[dict[str, Any]]:
    """In the AI-SDK UI shape, with ids ``<prefix>-<index>``."""
    return [
        {"id": f"{prefix}-{index}", "role": role, "parts": [{"type": "text", "text": text}]}
        for index, (role, text) in enumerate(LINES)
    ]
