"""English and German function words and opinion words, which are not proposed as aspects."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Words before a noun, with optional adjectives between them.
ENGLISH_BEFORE_NOUNS = _words("""
    the a an this that these those my your his her its our their each every some any no another all both which what
    of in on at for with from by into about around near over under between through without during after before behind
""")
GERMAN_BEFORE_NOUNS = _words("""
    der die das den dem des ein eine einen einem einer eines kein keine keinen keinem keiner dieser diese dieses diesen
    diesem mein meine meinen meinem meiner dein deine ihr ihre ihren ihrem ihrer sein seine seinen seinem seiner unser
    unsere unseren unserem unserer jeder jede jedes jeden jedem alle allen aller zum zur im am vom beim ins ans mit von
    für bei aus nach zu an auf in über unter vor hinter neben zwischen ohne durch gegen um seit während wegen trotz
""")
ENGLISH_OTHERS = _words("""
    is are was were be been being am get gets got seem seems seemed look looks looked looking feel feels felt very so
    too really quite pretty extremely rather more most less least as fairly incredibly super
    how not n't just always never to
    and or but if because while when where who whom whose why than then there here it i you he she we they me him us
    them myself yourself one ones do does did doing done can could will won't would shall should may might must has
    have had having also only even still again ever yet already almost maybe perhaps however although though since until
    unless against up down out off such same other others own few many much lot lots bit little several enough else
    everything everyone anything anyone anywhere something someone somewhere nothing thing things way ways kind sort
    like well etc eg ie either once due now today yesterday tomorrow time times day days week weeks month months year
    years hour hours minute minutes night nights first second last next two three four five
    go goes going went gone come comes came coming make makes made making take takes took taken give gives gave given
    say says said saying tell told know knew think thinking thought want wanted need needed try tried trying find found
    see saw seen let put keep kept use used ask asked leave left back
    can't couldn't don't doesn't didn't isn't aren't wasn't weren't won't wouldn't shouldn't haven't hasn't hadn't
    i'm i've i'd i'll you're you've you'd you'll it's we're we've we'd we'll they're they've that's there's
    could've would've should've must've might've he'd she'd it'd they'd that'd he'll she'll it'll they'll that'll
    who've ain't mustn't needn't
""")
GERMAN_OTHERS = _words("""
    ist sind war waren wird werden wurde wurden sei wäre bin bist seid gewesen sehr so ganz ziemlich recht wirklich echt
    total besonders extrem mehr weniger nicht immer nie nur und oder aber wenn weil als dass daß ob wie wo wer was wann
    warum denn doch auch noch schon mal dann da dort hier hin her er sie es ich du wir mir mich dir dich ihm ihn uns
    euch ihnen sich man habe hat haben hatte hatten kann können konnte könnte muss müssen musste soll sollte will wollen
    wollte würde würden etwas nichts alles viel viele vielen wenig wenige andere anderen sonst leider eher gar nun sowie
    bzw je etwa fast bis ab bereits daher deshalb trotzdem uhr tag tage tagen woche wochen monat jahr jahre zeit mal
    minuten stunde stunden gibt gab geht ging gehen kommt kam kommen macht machte machen gemacht lässt findet fand
    finden gehört zwei drei vier fünf
""")
# Chat abbreviations, units and times of day, which are frequent in short reviews.
ABBREVIATIONS = _words("""
    btw lol omg imo imho tbh idk asap pls plz please thx thanks thank etc yeah yes nope meh wow haha fyi noon midnight
    min mins sec secs hrs cant wont dont doesnt didnt isnt wasnt ive youre bitte danke naja mfg usw
""")
OPINIONS = _words("""
    good great nice best better excellent amazing awesome bad worse worst terrible horrible awful poor wonderful
    fantastic lovely perfect fine ok okay decent average mediocre love loved liked enjoy enjoyed hate hated recommend
    recommended disappointed disappointing favorite favourite beautiful pleasant highly definitely absolutely truly
    simply certainly probably actually especially usually
    gut gute guten guter gutes bessere besseren beste besten schlecht schlechte schlechten schlechter schlechtes toll
    tolle tollen toller schön schöne schönen hervorragend ausgezeichnet wunderbar perfekt schrecklich furchtbar
    mittelmäßig empfehlen empfehlenswert zufrieden enttäuscht enttäuschend absolut einfach sicher natürlich definitiv
    großen große groß kleine kleinen klein
""")
ARTICLES = _words("""
    the a an this that these those my your his her its our their
    der die das den dem des ein eine einen einem einer eines mein meine meinen meinem unser unsere unseren
""")
BEFORE_NOUNS = ENGLISH_BEFORE_NOUNS | GERMAN_BEFORE_NOUNS
FUNCTION_WORDS = BEFORE_NOUNS | ENGLISH_OTHERS | GERMAN_OTHERS | ABBREVIATIONS
# Words that are not nouns but occur in noun position in terse texts, and endings of other such words.
TERSE_OTHERS = _words("""
    new old latest clean dirty slow fast quick easy hard free broken cheap expensive full empty constant gone low high
    hot cold tiny big small huge ugly useless useful buggy weird annoying confusing boring insane nice cool solid simple
    worth star stars work works fix fixes install lose lost keeps delete remove stop stops open opens start starts send
    sent forget forgot wish hope hopes fail fails break breaks broke kill kills ruin wait waste guess add adds bring buy
    bought pay paid play plays change changes read loves hates likes needs wants using daily constantly randomly
    neu neue neuer neues alt alte alter langsam schnell schneller kaputt teuer billig voll leer nervt hängt läuft stürzt
    funktioniert braucht bekommt stern sterne immer ständig dauernd viel
""")
TERSE_ENDINGS = ("ed", "ly", "ing", "ful", "less", "able", "ous", "est")
NUMBERS = _words("many few fewer several numerous viele wenige mehrere einige")
QUANTITIES = NUMBERS | _words("more less much lots zero without lot plus mehr weniger viel wenig ohne")
# These words begin a clause, which is mostly about another aspect.
CONJUNCTIONS = _words("but while although though and however because which where und aber weil während obwohl jedoch")
