"""The dashboard: a Dash application that shows one sample store.

`data` reads the store and knows neither charts nor pages; `charts` is pure, data in and figure out;
`pages` have layouts and routes; `search` is the search field; `export` makes files.
`auth` and `security` decide which requests to answer. What a visitor chooses is one `view.View`,
kept by the browser and shown in the address, never by the server.

**In the browser.** Dash has the frame: routing, stores, polling (`app`). `static_files` serves all
scripts and styles of ``static`` as bundles with their hash in the address; pages with charts load a
part of Plotly from ``vendor``. Fields with a list are our own (`pages.page.choice_field`,
``fields.js``), and so are boxes beside a button (``beside.js``). ``scheme.js`` sets
``data-theme`` before anything is drawn, and colours are the ``--radt-*`` of ``core.css``. Pages are
HTML from ``templates`` and Plotly's figures, which one route per page renders (`pages.parts`);
Runs, Explore and Compare follow the view in the same way and draw in the browser. Dash's callbacks
wait for each other, so no page has any.

**Runs.** `data.run_columns` has each column as an array over all runs, made when it is first shown.
`data.run_table` searches, sorts and groups these and makes cells for the rows in sight only, which
``runs_grid.js`` draws. In a trial dash-ag-grid took twice as long to sort 10,000 rows, and its free
edition has no groups.

**Compare** is a small application in plain JavaScript, so that adding a chart, hiding a run or
moving a card does not wait for the server. ``compare.js`` has the state, the requests and the
charts; the other ``compare_*.js`` are one control each. It asks ``compare/facts`` as the selection
or the store changes and ``compare/figure`` for each visible chart, which answers 204 if none of
its runs has changed.

**Explore** draws on canvases, because Plotly's traces for it need WebGL and code from strings,
which the content security policy forbids. A brush is a range of a column, in the view.

**Timeline and Workload** share axis, zoom and cursor (``workload.js``).

**Run** has no templates for the content of files: `run_routes` sends parts of the log, beginnings
of files, which helper processes read (`data.run.previews`), and logged images, tables and texts,
which are found by the paths of artifacts (`data.run.media`). Contents of files reach the page as
text nodes, Markdown as HTML without the tags in it; `files` sends only the media types of
`data.run.kinds` to be shown, in a sandbox.

**Writing.** Only `notes` changes the store: notes on runs, which are tags and are delivered as
such, and saved views, which are copied nowhere. `auth.DashboardAccess.may_write` decides who may
write.
"""
