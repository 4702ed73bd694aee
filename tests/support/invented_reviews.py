"""Invented reviews with the label of every (text, aspect) pair, for tests of `qacg suggest` and the steps after it.

Restaurant reviews are sentences with articles. Opinions often have no noun ("we paid far too much"), and nouns often
have no opinion ("a friend had read of the soup"). Long sentences have several aspects. A sheet of `qacg suggest` that
had only short sentences with nouns would therefore be easier than the texts.

Terse reviews are in lower case, with few verbs and almost no articles.
"""

import random

POSITIVE, NEGATIVE, NONE = "positive", "negative", "none"
# By aspect: its nouns, frequent ones first; good and bad verdicts of this aspect only; and opinions without a noun.
RESTAURANT = {
    name: tuple(line.strip() for line in lines.strip().splitlines())
    for name, lines in {
        "food": """food|soup|pasta|dessert|menu|salad|bread|fish
            tasty|fresh|delicious|full of flavour
            bland|cold|greasy|half raw
            we ate every crumb|everything tasted of summer|our plates went back empty
            we left most of it|nothing had any taste|my stomach hurts still""",
        "service": """service|waiter|staff|hostess|manager|owner|cook|greeting
            friendly|attentive|quick|full of charm
            rude|slow|careless|never to be seen
            they greeted us like family|somebody refilled every glass|nobody hurried us
            they forgot us for an hour|nobody looked at us|we had to ask three times""",
        "price": """price|bill|cost|discount|surcharge|tip|voucher|total
            fair|low|reasonable|a bargain
            steep|high|outrageous|a rip-off
            we paid next to nothing|you get a lot for what you pay|cheaper than at home
            we paid far too much|expensive beyond belief|bring a lot of money""",
        "room": """room|music|decor|terrace|lighting|garden|chair|window
            cosy|romantic|elegant|full of light
            loud|dark|cramped|freezing
            we could have sat there for ever|one feels at home|made for a first date
            we had to shout all evening|one sits as in a station hall|we froze all evening""",
    }.items()
}
VERDICTS = {
    POSITIVE: "great|wonderful|better than expected|not bad at all|a joy",
    NEGATIVE: "terrible|awful|worse than expected|not good at all|a shame",
}
MENTIONS = "we asked about the {}|a friend had read of the {}|the {} was on the left|i took a picture of the {}"
FILLERS = (
    "we came by bus|it was my birthday|my sister lives nearby|we had booked by phone|it rained all day|we will see|"
    "this was in june|my parents were with us|we had never been there|it is next to a park|great weather, by the way|"
    "our bus was late, which was awful"
)
JOINTS = ", and |, but |, | while "
CLAUSES = (1, 1, 2, 2, 3, 4, 5)


def restaurant_reviews(count, seed):
    """Makes `count` different sentences: a dict from texts to the label of every aspect of RESTAURANT."""
    draw, found = random.Random(f"restaurant {seed}"), {}
    while len(found) < count:
        labels = dict.fromkeys(RESTAURANT, NONE)
        about = draw.sample([*RESTAURANT, *FILLERS.split("|")[:4]], draw.choice(CLAUSES))
        text = draw.choice(JOINTS.split("|")).join(_clause(draw, name, labels) for name in about)
        found.setdefault(f"{text[0].upper()}{text[1:]}.", labels)
    return found


def _clause(draw, name, labels):
    """Makes a clause, about an aspect if `name` is one. If it has an opinion, enters its label into `labels`."""
    kind = draw.random() if name in RESTAURANT else 1.0
    if kind > 0.85:
        return draw.choice(FILLERS.split("|"))
    nouns, good, bad, bare_good, bare_bad = (part.split("|") for part in RESTAURANT[name])
    noun = nouns[min(draw.randrange(8), draw.randrange(8))]
    if kind > 0.6:
        return draw.choice(MENTIONS.split("|")).format(noun)
    labels[name] = label = draw.choice((POSITIVE, NEGATIVE))
    own, bare = (good, bare_good) if label == POSITIVE else (bad, bare_bad)
    if kind > 0.35:
        return draw.choice(bare)
    return f"the {noun} was {draw.choice(own + VERDICTS[label].split('|'))}"


def aspect_of(noun):
    """The aspect of RESTAURANT that has a noun; None for other words."""
    return next((name for name, parts in RESTAURANT.items() if noun in parts[0].split("|")), None)


# By aspect of an app: its relative frequency, and remarks about it. No remark is from a real review.
APP = {
    "ads": (
        22,
        "way too many ads|ads every 5 seconds|ads ads ads|so many ads now|remove ads pls|no ads, love it|hate ads",
    ),
    "price": (
        12,
        "subscription too expensive|price doubled|great price|subscription for everything|cheap subscription",
    ),
    "stability": (
        16,
        "crashes constantly|keeps crashing on startup|crash after crash|freezes every 10 mins|buggy mess",
    ),
    "login": (10, "login broken|cant login|login loop since yesterday|forgot password, no email|login fast and easy"),
    "battery": (
        8,
        "battery drain|drains battery in 2 hrs|kills battery|battery usage insane|good battery life|phone hot",
    ),
    "support": (8, "support never answers|support useless|great support|emailed support twice, no reply"),
    "design": (10, "clean design|design ugly|new design confusing|nice layout|love dark mode|buttons tiny"),
    "updates": (9, "latest update ruined it|update broke everything|bring back old version|great update|updates daily"),
    "sync": (7, "sync fails|sync between devices works great|lost all notes after sync|backup gone|backup works"),
    "sound": (5, "volume too low|sound stutters|great sound|no sound on bluetooth|music stops randomly"),
}
REMARKS = (
    "love it|5 stars|1 star|uninstalled|btw im on pixel|lol|had it 10 mins|works fine|waste of time|thx devs|pls fix|"
    "best app ever|would recommend|tried it at noon|meh|since yesterday|omg|using it daily|my kid loves it|dont bother"
)


def terse_reviews(count=600):
    """Makes `count` reviews of an app in lower case, almost without articles, each with the aspects it is about."""
    draw, found = random.Random("app 0"), []
    shares = [share for share, _ in APP.values()]
    for _ in range(count):
        about = set(draw.choices([*APP], shares, k=draw.choice((1, 1, 1, 2))))
        parts = [draw.choice(APP[name][1].split("|")) for name in sorted(about)]
        for _ in range(draw.choice((0, 1, 1, 2))):
            parts.insert(draw.randrange(len(parts) + 1), draw.choice(REMARKS.split("|")))
        found.append((draw.choice((", ", ". ", " ", "! ", "... ")).join(parts), about))
    return found
