"""WebShop's online shop: the same pages, search results and rewards as the original, without its server."""
