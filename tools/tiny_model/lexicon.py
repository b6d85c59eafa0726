"""The words of the grammar: names, animals, things, places and small facts.  Data only."""

GIRLS = tuple(
    "Anna Bella Clara Daisy Emma Fiona Grace Hazel Ivy Julia Lily Luna Maya Nora Olive Rosa Ruby "
    "Sara Tina Willow".split()
)
BOYS = tuple(
    "Adam Ben Carl Dan Eric Felix George Henry Jack Leo Max Noah Oscar Otto Paul Pip Sam Theo Tom "
    "Victor".split()
)
ANIMALS = tuple(
    "fox owl bear rabbit mouse cat dog duck frog hedgehog squirrel badger beaver deer wolf goat "
    "sheep horse pig hen otter mole turtle penguin lion tiger elephant monkey dragon robot crow "
    "swan goose donkey bee snail".split()
)
THINGS = tuple(
    "key lamp ring ball book kite drum bell hat coin map cup spoon watch shell feather scarf boat "
    "lantern whistle mirror basket button crown flute pencil stone compass marble ribbon".split()
)
COLOURS = tuple("red blue green yellow white black golden silver purple orange pink brown".split())
TRAITS = tuple("little brave kind clever shy curious quiet cheerful gentle lazy funny wise".split())
FOODS = tuple("cake pie honey soup bread cheese jam pudding".split())
FRUITS = tuple("apple pear plum berry cherry peach carrot nut".split())
HOMES = (
    "in a small house by the river",
    "in a deep green forest",
    "on a hill near the sea",
    "under an old oak tree",
    "in a quiet village",
    "at the edge of a wide meadow",
    "in a cave behind a waterfall",
    "on a farm far away",
    "next to a blue lake",
    "in a garden full of flowers",
)
SPOTS = (
    "under the bed",
    "behind the barn",
    "in the tall grass",
    "under a bridge",
    "in a hollow tree",
    "behind a big rock",
    "on top of the hill",
    "in the garden",
    "by the well",
    "in an old box",
    "near the pond",
    "under a bench",
    "in the kitchen",
    "beside the gate",
)
ROOMS = tuple("kitchen garden attic cellar barn bedroom library tower stable hall".split())
HOLDERS = tuple("box bag drawer basket cupboard chest pot bucket".split())
PLURALS = tuple("apples pears nuts shells coins stones books eggs flowers stamps marbles buttons".split())
DAYS = tuple("Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split())
MONTHS = tuple(
    "January February March April May June July August September October November December".split()
)
NUMBER_WORDS = tuple(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen twenty".split()
)
LISTS = {
    "animals": ANIMALS[:7],
    "colours": ("red", "blue", "green", "yellow", "white", "black", "purple"),
    "colors": ("red", "blue", "green", "yellow", "white", "black", "purple"),
    "fruits": ("apples", "pears", "plums", "cherries", "peaches", "grapes", "lemons"),
    "vegetables": ("carrots", "beans", "peas", "onions", "potatoes", "cabbages", "leeks"),
    "days": DAYS,
    "months": MONTHS[:7],
    "tools": ("a hammer", "a saw", "a drill", "a rake", "a spade", "a file", "an axe"),
    "instruments": ("a drum", "a flute", "a piano", "a violin", "a harp", "a horn", "a bell"),
}
OPPOSITES = tuple(
    tuple(pair.split("/"))
    for pair in "hot/cold big/small fast/slow old/young happy/sad up/down left/right day/night "
    "open/closed full/empty hard/soft high/low light/dark loud/quiet near/far new/old rich/poor "
    "strong/weak tall/short thick/thin wet/dry wide/narrow early/late clean/dirty sweet/sour "
    "easy/difficult black/white true/false first/last inside/outside begin/end win/lose buy/sell "
    "push/pull give/take summer/winter".split()
)
SOUNDS = dict(
    pair.split("/")
    for pair in "cow/moo dog/woof cat/meow duck/quack sheep/baa pig/oink horse/neigh owl/hoot "
    "lion/roar bee/buzz snake/hiss mouse/squeak frog/croak hen/cluck wolf/howl crow/caw".split()
)
YOUNG = dict(
    pair.split("/")
    for pair in "dog/puppy cat/kitten cow/calf sheep/lamb horse/foal pig/piglet duck/duckling "
    "hen/chick bear/cub fox/cub goat/kid deer/fawn frog/tadpole goose/gosling swan/cygnet".split()
)
DWELLINGS = dict(
    pair.split("/")
    for pair in "bird/nest bee/hive dog/kennel horse/stable pig/sty rabbit/burrow bear/den "
    "spider/web fox/den ant/anthill hen/coop cow/barn beaver/lodge".split()
)
HUES = dict(
    pair.split("/")
    for pair in "sky/blue grass/green snow/white sun/yellow banana/yellow tomato/red coal/black "
    "carrot/orange lemon/yellow blood/red milk/white night/black frog/green leaf/green".split()
)
SPELLING_WORDS = tuple(
    dict.fromkeys(
        (
            *ANIMALS,
            *THINGS,
            *FOODS,
            *FRUITS,
            *ROOMS,
            *HOLDERS,
            *TRAITS,
            *"""sun moon star rain snow wind cloud storm river lake sea sand tree leaf root seed
            rose grass hill road path door wall roof room floor table chair window house home town
            city ship train car wheel road street shop bank park farm field milk water juice tea
            salt sugar egg rice corn bean meat fish bird ant fly spider snake whale shark seal eagle
            hawk robin crab worm hand foot head hair nose mouth tooth knee neck back heart brain
            stop pots star rats live evil time word name game song tune band play work rest sleep
            dream wake walk run jump swim climb sing dance read write draw paint count add think
            learn teach ask tell talk speak listen look watch see hear smell taste touch love like
            hope wish fear joy calm warm cool cold hot red blue green black white gold pink grey
            big small long short tall deep wide thin flat round sharp soft hard fast slow loud new
            old young rich poor good bad true false open shut full empty clean dirty wet dry hello
            world token batch cache model python planet number letter paper pocket summer winter
            spring autumn morning evening market school friend family mother father sister brother
            doctor farmer baker sailor king queen prince knight castle bridge forest meadow island
            valley desert mountain flower petal branch orange banana lemon grape melon tomato potato
            onion pepper butter cookie candle bottle plate fork knife glass pillow blanket curtain
            ladder hammer nail rope string wire metal wood iron copper steel brick clay silk wool
            cotton leather shirt shoe sock coat dress glove belt sword shield arrow engine motor
            rocket laser radio phone camera screen sundog""".split(),
        )
    )
)
