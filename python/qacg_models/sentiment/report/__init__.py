"""Tables and offline pages of results, attention maps, and the page of a model."""
