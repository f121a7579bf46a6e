"""The sample store: schema, codec, writer and reader."""
