"""One loader for several training processes on a machine (TensorSocket; thesis, chapter 5).

A loader has one server and any number of consumers. The first consumer binds an abstract Unix
socket, which is the lock, too, and passes it to the server that it starts (`starting`); the others
connect (`session`, `radt.loaders.wire`).

A batch lies in a *slot* of an *arena* (`radt.loaders.arena`), described by a pickle in which
tensors are offsets (`radt.loaders.layout`). Workers of a ``DataLoader`` fill slots themselves
(`collating`). Consumers get the number of a slot and map it; a slot is free when all consumers have
released its batch, each when the last tensor of it is gone. `membership` has these rules, without
sockets.

The server's main thread loads (`loading`), its other one answers consumers (`server`); they share a
`state`. For consumers on a GPU it copies each batch there once (`device`, `cuda`). `rebatch` cuts
batches to a consumer's size. `randomness` is the state where an epoch began, from which a new
server makes the same epoch.
"""
