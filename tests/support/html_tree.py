"""The elements of an HTML page."""

from html.parser import HTMLParser


class Tree(HTMLParser):
    """The elements of a page with their attributes, texts and ancestors; elements must be closed in order."""

    VOID = ("meta", "br", "link", "img")

    def __init__(self, text):
        super().__init__()
        self.found, self.open = [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        element = {"tag": tag, **dict(attributes), "text": "", "around": list(self.open)}
        self.found.append(element)
        if tag not in self.VOID:
            self.open.append(element)

    def handle_endtag(self, tag):
        assert self.open.pop()["tag"] == tag

    def handle_data(self, data):
        for element in self.open:
            element["text"] += data

    def all(self, *tags):
        return [element for element in self.found if element["tag"] in tags]

    @property
    def fetched(self):
        """The addresses that a browser loads with the page; links are not loaded."""
        names = ("src", "href", "xlink:href", "data")
        found = [one.get(name) or "" for one in self.found if one["tag"] != "a" for name in names]
        return [address for address in found if address and not address.startswith(("#", "data:"))]

    @property
    def rows(self):
        """The texts of the cells of each table row."""
        cells = self.all("td", "th")
        return [[cell["text"] for cell in cells if any(one is row for one in cell["around"])] for row in self.all("tr")]
