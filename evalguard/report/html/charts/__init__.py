"""Charts: plain numbers in, inline SVG out; laid by hand, coloured by the page's stylesheet."""
