"""As much of DCGM's pydcgm.py as radt uses."""

import dcgm_agent


class DcgmHandle:
    def __init__(self, handle=None, ipAddress=None, timeoutMs=0):  # noqa: N803 - as in DCGM
        assert handle is None
        assert ipAddress == "localhost", "None starts a host engine of our own"
        assert 0 < timeoutMs <= 5000
        self.handle = dcgm_agent.connect()

    def Shutdown(self):  # noqa: N802
        dcgm_agent.disconnect(self.handle)
        self.handle = None
