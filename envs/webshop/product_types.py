"""What the products of a generated catalogue are: types, their attributes, options and prices, and how to say it."""

from __future__ import annotations

from typing import NamedTuple

CATEGORIES = {  # category -> first part of the path
    "fashion": "Clothing, Shoes & Jewelry",
    "beauty": "Beauty & Personal Care",
    "electronics": "Electronics",
    "garden": "Home & Kitchen",
    "grocery": "Grocery & Gourmet Food",
}

_BRANDS = (
    "Alderby Arkova Belmuir Birchwell Calvano Cindermoor Dovara Drayton Elmstead Everlund Fenwick Ferrano Glenholt "
    "Halvora Hartmoor Ivorel Junowick Kestrel Kelmora Larkfield Lumenor Marwick Mirelle Norvale Northam Oakmere "
    "Orsino Penrook Quillon Ravello Rosemoor Solvanta Starling Tamsin Tessaro Umberley Velmont Westova Yarrow Zephine"
)
BRANDS = tuple(_BRANDS.split())

OPTIONS = {  # kind -> (name of the option as the file has it, values)
    "colour": (
        "Color",
        "black;white;navy blue;royal blue;sky blue;grey;dark green;olive green;wine red;coral;rose gold;light pink;"
        "purple;khaki;brown;beige;ivory;teal;mustard yellow;orange;Black/White;Grey/Silver;multicolor;turquoise",
    ),
    "clothing": ("Size", "x-small;small;medium;large;x-large;xx-large;3x-large"),
    "shoe": ("Size", "5;5.5;6;6.5 wide;7;7.5;8;8.5 wide;9;9.5;10;11 wide;12"),
    "bed": ("Size", "twin;twin xl;full;queen;king;california king"),
    "area": ("Size", "2 x 3 ft;3 x 5 ft;4 x 6 ft;5 x 7 ft;8 x 10 ft;runner 2 x 8 ft"),
    "length": ("Size", "1.5 feet;3 feet;6 feet;10 feet;15 feet;25 feet"),
    "storage": ("Capacity", "32 gb;64 gb;128 gb;256 gb;512 gb"),
    "volume": ("Size", "1 fl oz;2 fl oz;4 fl oz;8 fl oz;12 fl oz;16.9 fl oz"),
    "weight": ("Size", "3.5 ounce;6 ounce;8 ounce;12 ounce;1 pound;2 pound;5 pound"),
    "pack": ("Pack", "pack of 1;pack of 2;pack of 3;pack of 4;pack of 6;pack of 12"),
    "sweet": ("Flavor", "chocolate;vanilla;strawberry;salted caramel;lemon;cinnamon;peanut butter;blueberry;maple"),
    "savoury": ("Flavor", "sea salt;smoked paprika;garlic;rosemary;chilli lime;black pepper;original;barbecue"),
    "scent": ("Scent", "lavender;eucalyptus;unscented;rose;sandalwood;citrus;coconut;vanilla bean;fresh linen"),
}

PHRASES = {  # option name -> how an instruction asks for it
    "color": "in {}",
    "size": "in size {}",
    "capacity": "with {}",
    "pack": "as a {}",
    "flavor": "with {} flavor",
    "scent": "with {} scent",
}


class ProductType(NamedTuple):
    """A type of products: a line of the table below."""

    category: str
    leaf: str  # the last part of its path, and the query that finds its kind
    noun: str  # as a title and an instruction have it
    materials: tuple[str, ...]  # words before the noun
    attributes: tuple[str, ...]
    options: tuple[str, ...]  # kinds
    prices: tuple[int, int]  # dollars, lowest and highest


def _types(table: str) -> tuple[ProductType, ...]:
    """A type a line; its parts are divided by ``:``, the entries of a part by ``;``."""
    types, category = [], ""
    for line in table.strip().splitlines():
        if ":" not in line:
            category = line
            continue
        leaf, noun, materials, attributes, options, prices = (part.strip() for part in line.split(":"))
        low, high = (int(price) for price in prices.split("-"))
        words, asked, kinds = (tuple(part.split(";")) for part in (materials, attributes, options))
        types.append(ProductType(category, leaf, noun, words, asked, kinds, (low, high)))
    return tuple(types)


TYPES = _types("""
fashion
Men's T-Shirts: t-shirt: Cotton;Linen;Bamboo;Jersey: \
machine washable;short sleeved;slim fit;classic fit;quick drying;moisture wicking;tagless: colour;clothing: 9-35
Women's Dresses: dress: Cotton;Silk;Chiffon;Viscose: \
hand washable;long sleeved;machine washable;loose fit;wrinkle free;high waisted;lined: colour;clothing: 19-120
Hoodies: hoodie: Fleece;Cotton;Terry: \
machine washable;long sleeved;fleece lined;relaxed fit;water repellent;shrink resistant: colour;clothing: 22-75
Men's Jeans: pair of jeans: Denim;Stretch Denim;Selvedge: \
machine washable;straight leg;slim fit;button closed;stone washed;tumble dry safe: colour;clothing: 25-110
Sneakers: pair of sneakers: Canvas;Mesh;Knit: \
lightweight;slip resistant;rubber soled;arch supporting;lace up;breathable: colour;shoe: 30-140
Sandals: pair of sandals: Leather;Cork;Suede: \
open toed;ankle strapped;rubber soled;slip resistant;memory foam cushioned;water resistant: colour;shoe: 15-90
Winter Jackets: jacket: Down;Softshell;Quilted: \
water resistant;wind proof;fleece lined;machine washable;insulated;packable: colour;clothing: 45-260
Socks: set of socks: Wool;Cotton;Bamboo: \
moisture wicking;cushioned;machine washable;odor resistant;arch supporting;seamless: colour;pack: 6-28
beauty
Shampoo: shampoo: Argan;Rosemary;Oat: \
sulfate free;paraben free;cruelty free;color safe;anti dandruff;vegan: scent;volume: 6-40
Face Moisturizers: face cream: Aloe;Squalane;Ceramide: \
fragrance free;oil free;long lasting;anti aging;cruelty free;dermatologist tested: volume;pack: 9-85
Lip Balms: lip balm: Shea;Beeswax;Cocoa: \
long lasting;cruelty free;paraben free;tinted;non sticky;gluten free: scent;pack: 3-18
Makeup Brushes: makeup brush set: Synthetic;Bamboo;Walnut: \
easy clean;cruelty free;travel sized;soft bristled;shed free;vegan: colour: 8-55
Body Lotions: body lotion: Almond;Shea;Oat: \
fast absorbing;alcohol free;paraben free;long lasting;plant based;hypoallergenic: scent;volume: 6-45
Hair Dryers: hair dryer: Ceramic;Ionic;Tourmaline: \
fast drying;low noise;foldable;lightweight;dual voltage;heat resistant: colour: 25-210
Nail Polish: nail polish: Gel;Matte;Shimmer: \
quick drying;chip resistant;non toxic;long lasting;vegan;high gloss: colour;pack: 4-22
Perfumes: eau de parfum: Floral;Amber;Woody: \
long lasting;alcohol free;travel sized;cruelty free;refillable;phthalate free: scent;volume: 15-130
electronics
USB Cables: usb cable: Braided;Nylon;Silicone: \
fast charging;heavy duty;tangle free;high speed;gold plated;reversible: colour;length: 5-30
Headphones: pair of headphones: Wireless;Over-Ear;Studio: \
noise cancelling;foldable;long lasting;sweat resistant;bass boosted;quick charging: colour: 20-350
Phone Cases: phone case: Silicone;Leather;Carbon: \
shock absorbing;scratch resistant;wireless charging compatible;slim;drop tested;easy install: colour: 7-45
Portable Speakers: speaker: Bluetooth;Outdoor;Mini: \
water proof;dust proof;hands free;long lasting;stereo paired;shock resistant: colour: 18-240
Memory Cards: memory card: Micro;Compact;Pro: \
high speed;water proof;temperature resistant;shock proof;ultra hd ready: storage;pack: 8-160
Smart Watches: smart watch: Aluminum;Steel;Ceramic: \
water resistant;heart rate tracking;long lasting;gps enabled;quick charging;scratch resistant: colour: 35-420
Desk Lamps: desk lamp: Metal;Walnut;Brass: \
energy efficient;dimmable;eye caring;space saving;usb powered;easy assemble: colour: 16-95
Tripods: tripod: Carbon;Aluminum;Travel: \
lightweight;quick release;heavy duty;easy carry;adjustable;non slip: colour;length: 18-220
garden
Area Rugs: rug: Jute;Wool;Shag;Cotton: \
machine washable;easy clean;non slip;stain resistant;fade resistant;pet friendly: colour;area: 22-380
Bed Sheets: sheet set: Bamboo;Flannel;Percale;Linen: \
machine washable;wrinkle resistant;super soft;deep pocketed;breathable;hypoallergenic: colour;bed: 24-160
Curtains: pair of curtains: Velvet;Linen;Blackout: \
machine washable;thermal insulated;noise reducing;room darkening;easy hang;energy efficient: colour;pack: 18-90
Dining Chairs: dining chair: Oak;Walnut;Rattan: \
mid century styled;easy assemble;heavy duty;stackable;upholstered;space saving: colour;pack: 55-640
Coffee Tables: coffee table: Oak;Glass;Marble;Bamboo: \
easy assemble;scratch resistant;space saving;hand crafted;heavy duty;eco friendly: colour: 60-1250
Water Bottles: water bottle: Steel;Glass;Copper: \
leak proof;bpa free;vacuum insulated;dishwasher safe;wide mouthed;lightweight: colour;volume: 9-48
Bath Towels: bath towel set: Cotton;Waffle;Bamboo: \
machine washable;super soft;quick drying;fade resistant;highly absorbent;lint free: colour;pack: 14-75
Storage Baskets: storage basket: Seagrass;Cotton Rope;Felt: \
collapsible;hand woven;easy clean;heavy duty;stackable;eco friendly: colour;pack: 12-58
grocery
Ground Coffee: ground coffee: Colombian;Espresso;Breakfast: \
fair trade;organic;low acid;dark roasted;caffeine free;single origin: sweet;weight: 8-38
Herbal Teas: herbal tea: Rooibos;Mint;Chamomile: \
caffeine free;organic;sugar free;individually wrapped;non gmo;hand picked: sweet;pack: 5-26
Protein Bars: box of protein bars: Oat;Almond;Pea: \
gluten free;high protein;low sugar;plant based;soy free;keto friendly: sweet;pack: 12-45
Potato Chips: bag of potato chips: Kettle;Ridged;Sweet: \
gluten free;baked;low sodium;non gmo;trans fat free;lightly salted: savoury;weight: 3-24
Nut Butters: nut butter: Almond;Cashew;Hazelnut: \
no sugar added;organic;dairy free;palm oil free;stone ground;vegan: weight;pack: 7-32
Granola: granola: Oat;Quinoa;Coconut: \
whole grain;gluten free;low sugar;non gmo;hand baked;high fiber: sweet;weight: 5-28
Olive Oils: olive oil: Tuscan;Andalusian;Cretan: \
extra virgin;cold pressed;organic;unfiltered;low acidity;kosher certified: volume;pack: 9-60
Dried Fruits: dried fruit mix: Mango;Fig;Berry: \
no sugar added;sulfite free;organic;non gmo;individually wrapped;sun dried: weight;pack: 6-34
""")

BULLETS = (  # headline and sentence about an attribute
    "{Attribute}: you get {a_noun} that is {attribute} and stays so.",
    "MADE TO PLEASE: {attribute} from the first day, checked by hand before it leaves us.",
    "{Attribute} BY DESIGN: our answer to buyers who asked for something {attribute}.",
    "WHY IT HELPS: being {attribute}, it saves you time and trouble.",
)
SENTENCES = (  # of descriptions; {such} is such as "an organic olive oil"
    "This {noun} by {brand} is {attribute}, so it fits into any routine.",
    "It belongs to our {material} line, which is pleasant to use and easy to care for.",
    "Buyers like that it is {attribute}.",
    "A good gift for anybody who has been looking for {such}.",
    "If anything is wrong with it, write to us and we will send another one.",
)
SYNTHETIC_INSTRUCTIONS = (  # {what} is such as "an organic, low acid ground coffee"
    "i'm looking for {what}",
    "find me {what}",
    "i would like to buy {what}",
    "show me {what}",
)
HUMAN_INSTRUCTIONS = (  # {options} is such as ", in navy blue and in size 7"
    "i need {a_noun} that is {attributes}{options}.",
    "i'm looking for {a_noun}{options}. it should be {attributes}.",
    "can you find {a_noun} for me{options}, please pick one that is {attributes}.",
    "my sister wants {a_noun} and only {attributes} will do{options}.",
    "i want to order {a_noun}{options} and i care that it is {attributes}.",
)
