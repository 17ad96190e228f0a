"""Fillers of samples: names, places, things, tools and pieces of real tales. A hash splits them in two pools, "train" and "heldout", which share none."""
import collections
import re
import zlib

HELD_OUT_PART = 8  # one of so many goes to the held-out pools
FIRST = ("Al Ar Bal Bel Ber Bran Bryn Cal Car Cor Dal Dar Del Dor El Em Er Fal Fen Fer Gal Gar Gil Gor Hal Har Hel Il Jar Jas Jor Kal Kar Kel Ler Lin "
         "Lor Mal Mar Mel Mer Mor Nal Ner Nor Ol Or Os Pel Per Quin Ral Ran Ros Sal Sel Sor Tal Tar Tel Tor Ul Val Ver Vin Wen Wil Yor Zan Zel").split()
LAST = ("a ack amir an and ara ard as ath bert bin by da dan den dis dra dwin el ena eth fa fin fred frid ga gan go gund ian ic id ilde in ina io ira is "
        "ka kin la lan lia lin lo low man mara mi mon mund na nard nia nis nor o or ora ran ric rid rin ro ron sa son ta tha to ton us va van vara vin wen win wyn").split()
REAL = ("Ada Agnes Alice Amos Anna Arthur Basil Beatrix Bella Ben Bertha Boris Bruno Carl Cecil Clara Cosmo Daisy Daniel David Dora Edgar Edith Eliza Ella "
        "Emil Emma Ernest Esther Ethel Eva Felix Flora Frank Freda Gerda Gilbert Grace Greta Gustav Hans Harold Hazel Helen Henry Hilda Hugo Ida Igor Iris "
        "Isaac Ivan Jack James Jane Jasper Joan John Jonas Judith Julia Karl Kate Laura Leo Lewis Lily Lotte Louis Lucy Luke Mabel Magnus Maria Martha Martin "
        "Max May Milo Mina Mira Nancy Nell Nora Oscar Otto Paul Pearl Peter Philip Polly Ralph Robin Rosa Ruby Rufus Ruth Sam Sara Silas Simon Sophie Stella "
        "Susan Thea Thomas Tilda Toby Tom Ursula Vera Victor Walter Wanda William Winifred Xaver Zoe").split()
KINDS = ("badger bear beaver beggar boy cat cobbler cock cook cow crow dog dove dragon duck dwarf eagle farmer ferryman fisher fox frog ghost giant girl goat "
         "goose gnome hare hen hedgehog hermit heron horse hunter innkeeper king knight lamb lion lizard magpie maid mermaid merchant miller miner mole monk mouse "
         "nurse old_man old_woman otter owl ox page painter parrot pedlar pig potter prince princess queen rabbit ram rat raven robin sailor servant shepherd "
         "singer smith snail snake soldier sparrow spider squirrel stork swan tailor thief thrush toad troll tinker turtle weaver wizard witch wolf woodcutter").split()
ITEMS = ("apple axe bag ball basket bell belt blanket boat book boot bottle bowl box bracelet broom brush bucket button candle cap carpet chain chair chest "
         "clock cloak coat comb cradle crown cup dagger door drum egg fan feather fiddle flute fork glass glove hammer harp hat helmet hood horn jar jug kettle key "
         "knife ladder lamp lantern map mask mirror mug nail needle net oar pan pearl pen pillow pipe plate pot purse quilt rake ribbon ring rope saddle scarf shawl "
         "shield shirt shoe sledge spade spear spindle spoon staff stool sword table thimble towel trumpet vase violin wagon walking-stick whistle").split()
LOOKS = ("black blue brass broken bronze brown clay copper crooked crystal dusty empty enchanted glass golden green grey heavy iron ivory leather little magic "
         "marble old orange painted pale pink plain purple red rusty shining silver stone straw striped tin velvet white wooden woollen yellow").split()
THINGS = ("acorns apples barrels beans bells berries birds books bottles bricks buttons cakes candles carrots cherries chestnuts coins cups eggs feathers figs "
          "fishes flowers geese goats hats horses jars keys lambs leaves lemons letters loaves mice mushrooms nails nuts onions oranges pears pearls pebbles pies "
          "pigs plums pots potatoes ribbons rings roses sacks sheep shells shoes spoons stars stones turnips walnuts wolves").split()
PLACE_ENDS = "bridge brook bury dale field ford gate ham haven hill holm hurst mere mill moor port side stead stow ton vale wick wood worth".split()
SPOTS = ("barn bridge brook castle cave cellar church crossroads ferry field forge forest fountain garden gate hill inn island kitchen lake market meadow mill "
         "orchard palace pond quarry river road shore stable stream temple tower valley well wood").split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
SEASONS = "spring summer autumn winter".split()
NUMBERS = "zero one two three four five six seven eight nine ten eleven twelve".split()
OWNED = ("aunt bakery boat brother castle cat cousin cow daughter dog donkey dragon farm ferry friend garden goat goose grandmother hen horse house inn island king "
         "lamb master mill mother nephew neighbour nurse owl parrot pig pony prince puppy rabbit raven school servant ship shop sister son street sword teacher "
         "tower town uncle village wife").split()
COLOURS = "black blue brown gold green grey orange pink purple red silver violet white yellow".split()
VERBS = {  # what a definition says: what people say
    "add": ["add", "put in", "write down"], "book": ["book", "reserve"], "buy": ["buy", "get"], "cancel": ["cancel", "call off"], "check": ["check", "look at"],
    "clean": ["clean", "wash"], "close": ["close", "shut"], "count": ["count", "number"], "create": ["create", "make"], "delete": ["delete", "remove"],
    "draw": ["draw", "sketch"], "find": ["find", "look for", "search for"], "get": ["get", "tell me", "show me"], "hide": ["hide", "put away"],
    "lock": ["lock", "bolt"], "move": ["move", "carry"], "open": ["open", "unlock"], "order": ["order", "send for"], "paint": ["paint", "colour"], "plan": ["plan", "prepare"],
    "print": ["print", "put on paper"], "read": ["read", "read out"], "rent": ["rent", "hire"], "repair": ["repair", "mend", "fix"], "save": ["save", "keep"],
    "sell": ["sell", "offer"], "send": ["send", "post"], "start": ["start", "begin"], "stop": ["stop", "end"], "translate": ["translate", "put into words"]}
NOUNS = ("alarm appointment bath bed bell bill boat book bread bridge bus cake calendar camera car carriage chair coach coat concert contact cottage dance dinner doctor "
         "door dress event fence ferry film flight flower forecast game garden gate gift guide horse hotel house invitation joke journey kitchen lamp lesson letter light "
         "list lunch map meal medicine meeting message mirror music news note office oven package painting parcel park party photo picture poem price reminder report "
         "restaurant ring road room route saddle school seat ship shirt shoe shop song stable stove story sword table task tea temperature tent ticket timer tower "
         "train tree trip umbrella wagon walk wall weather well window word").split()


def is_held(word):
    return zlib.crc32(("held " + word).encode()) % HELD_OUT_PART == 0


def words_of(tales):
    """Plain words of the tales, without the commonest, and their names."""
    text = "\n".join(tales)
    plain = collections.Counter(re.findall(r"(?<![\w'-])[a-z]{3,11}(?![\w'-])", text))
    names = collections.Counter(re.findall(r"(?<=[a-z,] )[A-Z][a-z]{2,10}(?![\w'-])", text))
    return sorted(w for w, n in plain.most_common()[200:] if n >= 8) + sorted(w for w, n in names.items() if n >= 8)


def sound(rng):
    """A name that nobody has: two or three syllables."""
    return "".join(rng.choice("b br c d dr f g gr h j k l m n p qu r s st t th tr v w y z".split()) + rng.choice("a e i o u ae ai ea ie oo ou".split())
                   for _ in range(rng.choice([2, 2, 3]))) + rng.choice(["", "", "k", "l", "m", "n", "nd", "r", "rt", "s", "t"])


class Pool:
    """The fillers of one split: what the hash gives to the other split never comes out. With words (training), half of the fillers are any of these and half of
    the names are any of these or any sounds: what can only be copied is learnt as copying, and not as a choice among some hundred known fillers."""

    def __init__(self, split, words=()):
        self.split, self.all_words, held = split, list(words), split == "heldout"
        self.words = [w for w in words if w.islower() and not is_held(w)]
        ours = lambda words: [w for w in words if is_held(w) == held]  # noqa: E731
        self.made = ours([a + b for a in FIRST for b in LAST if len(a + b) > 3])
        self.real, self.kinds, self.items, self.looks, self.things = ours(REAL), ours(KINDS), ours(ITEMS), ours(LOOKS), ours(THINGS)
        self.places = ours([a + b for a in FIRST for b in PLACE_ENDS])
        self.owned, self.spots = ours(OWNED), ours(SPOTS)
        self.tool_words, self.tools_with = ours([f"{v} {n}" for v in VERBS for n in NOUNS]), collections.defaultdict(list)
        for w in self.tool_words:
            for part in w.split():
                self.tools_with[part].append(w)

    def name(self, rng, but=()):
        while True:
            if self.words and rng.random() < 0.5:
                n = self.new_name(rng)
            else:
                n = rng.choice(self.real if rng.random() < 0.3 else self.made)
            if n not in but:
                return n

    def new_name(self, rng):
        while True:
            n = (rng.choice(self.words) if rng.random() < 0.4 else sound(rng)).capitalize()
            if not is_held(n):
                return n

    def some(self, rng, fillers, n):
        """n different ones of a list; with words each second one is any word."""
        if not self.words:
            return rng.sample(fillers, n)
        out = []
        while len(out) < n:
            w = rng.choice(self.words if rng.random() < 0.5 else fillers)
            if w not in out:
                out.append(w)
        return out

    def some_places(self, rng, n):
        if not self.words:
            return rng.sample(self.places, n)
        out = []
        while len(out) < n:
            w = rng.choice(self.places) if rng.random() < 0.5 else self.new_name(rng) + rng.choice(["", *PLACE_ENDS])
            if w not in out and not is_held(w):
                out.append(w)
        return out

    def one(self, rng, fillers):
        return rng.choice(fillers) if not self.words else self.some(rng, fillers, 1)[0]

    def place(self, rng):
        return rng.choice(self.places) if not self.words else self.some_places(rng, 1)[0]

    def tool(self, rng):
        """Verb and noun of a tool."""
        if self.words and rng.random() < 0.3:
            w = f"{rng.choice(list(VERBS))} {rng.choice(self.words)}"
            if not is_held(w):
                return w
        return rng.choice(self.tool_words)

    def near(self, words):
        """The tools that share the verb or the noun."""
        verb, noun = words.split()
        return self.tools_with[verb] + [w for w in self.tools_with[noun] if w not in self.tools_with[verb]]

    def key(self, rng, name):
        """The name of a parameter or property; in training some have a word more, so that they are copied whole."""
        if not self.words or rng.random() < 0.5:
            return name
        return rng.choice(["{0}_{1}", "{1}_{0}"]).format(name, rng.choice(self.words))

    def names(self, rng, n):
        out = []
        for _ in range(n):
            out.append(self.name(rng, out))
        return out


class Bank:
    """Running text of real tales, to hide things in and to copy from."""

    def __init__(self, tales):
        self.tales = [t for t in tales if len(t) > 600]
        self.weights, total = [], 0
        for t in self.tales:
            total += len(t)
            self.weights.append(total)

    def piece(self, rng, chars):
        """Some `chars` characters that begin and end with a sentence; several tales, if one is too short."""
        out = []
        while chars > 60 or not out:
            chars = max(chars, 60)
            t = rng.choices(self.tales, cum_weights=self.weights)[0]
            at = rng.randrange(max(1, len(t) - chars))
            begin = 0
            if at:
                found = re.compile(r"[.!?]['\"]?[ \n]").search(t, at)
                begin = found.end() if found else 0
            end = len(t)
            if begin + chars < len(t):
                ends = [m.start(1) for m in re.finditer(r"[.!?]['\"]?([ \n])", t[begin:begin + chars + 1])]
                end = begin + ends[-1] if ends and ends[-1] > chars // 2 else t.rfind(" ", begin, begin + chars)
            if end > begin + 30:
                out.append(t[begin:end].strip())
                chars -= end - begin + 40
        return "\n".join(out)

    def sentence(self, rng):
        for _ in range(20):
            found = re.search(r"[.!?] ([A-Z][a-z][^.!?\"':;\n]{25,130}\.) ", self.piece(rng, 500) + " ")
            if found:
                return found.group(1)
        return "The sun went down behind the hills."


def a(word):
    return ("an " if word[0] in "aeiouAEIOU" else "a ") + word


def count(n):
    return NUMBERS[n] if n < len(NUMBERS) else str(n)
