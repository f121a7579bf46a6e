"""Pages of the dashboard, one module per page; ``app.PAGES`` lists them."""
