"""Reports in the formats for people and programs: terminal, Markdown, HTML, CSV, JSON.

`report`, `comparison` and `advice` fill a `model.Document`, which `terminal` and `markup` write.
Tables and bars (`bars`) of the dashboard's Report page come from the same functions. `report_json`,
`report_csv` and `comparison_json` have exact numbers for programs. To add a format, extend `files`.
"""
