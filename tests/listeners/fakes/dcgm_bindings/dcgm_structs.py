"""As much of DCGM's dcgm_structs.py as radt uses, with its layouts."""

import ctypes

DCGM_ST_OK = 0
DCGM_ST_BADPARAM = -1
DCGM_ST_UNKNOWN_FIELD = -13
DCGM_ST_NOT_WATCHED = -16
DCGM_ST_CONNECTION_NOT_VALID = -21
DCGM_ST_LIBRARY_NOT_FOUND = -25
DCGM_GROUP_EMPTY = 1


class DCGMError(Exception):
    def __init__(self, value, text=""):
        super().__init__(text or f"DCGM error {value}")
        self.value = value


class c_dcgmGroupEntityPair_t(ctypes.Structure):  # noqa: N801 - as in DCGM
    _fields_ = (("entityGroupId", ctypes.c_uint32), ("entityId", ctypes.c_uint32))


class c_dcgmFieldValue_v1_value(ctypes.Union):  # noqa: N801
    _fields_ = (
        ("i64", ctypes.c_int64),
        ("dbl", ctypes.c_double),
        ("str", ctypes.c_char * 256),
        ("blob", ctypes.c_byte * 4096),
    )


class c_dcgmFieldValue_v2(ctypes.Structure):  # noqa: N801
    _fields_ = (
        ("version", ctypes.c_uint),
        ("entityGroupId", ctypes.c_uint),
        ("entityId", ctypes.c_uint),
        ("fieldId", ctypes.c_ushort),
        ("fieldType", ctypes.c_short),
        ("status", ctypes.c_int),
        ("unused", ctypes.c_uint),
        ("ts", ctypes.c_int64),
        ("value", c_dcgmFieldValue_v1_value),
    )
