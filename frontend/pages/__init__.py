"""Pages of the dashboard, one module a page; ``app.PAGES`` lists them."""
