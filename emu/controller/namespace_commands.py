"""Admin commands that create, delete, attach, format and sanitize namespaces.

Owns the checks of these commands and the order of their effects. Does not own the namespaces
(namespaces.py) or the erasure of data, which the transport performs as an action (actions.py).
Source: NVM Express Base Specification 2.0, sections 5.14 (Format NVM), 5.22 (Namespace Attachment),
5.23 (Namespace Management), 5.24 (Sanitize) and 8.21 (sanitize operations); NVM Command Set
Specification 1.0, figure "Namespace Management - Data Structure for Create".
"""

from __future__ import annotations

from ondie.emu.controller.actions import Action, Do
from ondie.emu.controller.health_logs import DONE, FAILED, IN_PROGRESS, SanitizeState
from ondie.emu.controller.identify_namespace import NVM_COMMAND_SET
from ondie.emu.controller.namespaces import BROADCAST, Namespaces
from ondie.emu.controller.opcodes import Admin
from ondie.emu.controller.status_code import Code, Refused
from ondie.emu.controller.structure import Field, Structure
from ondie.emu.nvme.wire import Sqe

CREATE, DELETE = 0, 1
ATTACH, DETACH = 0, 1
SEL_BYTE, CDW10_BYTE, CDW11_BYTE, NSID_BYTE = 40, 40, 44, 4
NO_ERASE, USER_DATA_ERASE, CRYPTOGRAPHIC_ERASE = range(3)
"""Secure erase settings (field SES of the Format NVM command)."""
EXIT_FAILURE, BLOCK_ERASE = 1, 2
"""Sanitize actions (field SANACT of the Sanitize command)."""
UNRESTRICTED_EXIT = 1 << 3
"""AUSE (Allow Unrestricted Sanitize Exit): if the sanitize operation fails, the host may leave the
failure state without a successful sanitize operation."""
NO_DEALLOCATE = 1 << 9
MOST_CONTROLLERS = 2047

HOST_SOFTWARE_FIELDS = Structure(
    "Namespace Management data structure for Create",
    4096,
    "NVM Command Set 1.0: Namespace Management - Data Structure for Create",
    (
        Field(0, 8, "NSZE", "Namespace Size"),
        Field(8, 8, "NCAP", "Namespace Capacity"),
        Field(26, 1, "FLBAS", "Formatted LBA Size"),
        Field(29, 1, "DPS", "End-to-end Data Protection Type Settings"),
        Field(30, 1, "NMIC", "Multi-path I/O and Namespace Sharing"),
        Field(92, 4, "ANAGRPID", "ANA Group Identifier"),
        Field(100, 2, "NVMSETID", "NVM Set Identifier"),
        Field(102, 2, "ENDGID", "Endurance Group Identifier"),
    ),
)


def data_bytes(sqe: Sqe) -> int:
    """Return the number of data bytes that the host sends with Namespace Management or Namespace
    Attachment."""
    management = sqe.opcode == Admin.NAMESPACE_MANAGEMENT
    return 0 if management and sqe.cdw10 & 0xF != CREATE else 4096


def manage(sqe: Sqe, data: bytes, namespaces: Namespaces) -> tuple[int, list[Action], list[int]]:
    """Execute Namespace Management: create a namespace, or delete one or all namespaces. Return
    (dword 0 of the completion, actions, identifiers of the deleted namespaces).

    Deletion of an attached namespace implies its detachment. Raises Refused if a field of the
    command or of its data is invalid, if a namespace cannot be created, or if a namespace to delete
    is write-protected.
    """
    select = sqe.cdw10 & 0xF
    if select == CREATE:
        return _create(sqe, data, namespaces), [], []
    if select != DELETE:
        raise Refused(Code.INVALID_FIELD, SEL_BYTE)
    if sqe.nsid == BROADCAST:
        nsids = namespaces.identifiers(attached=False)
        if namespaces.any_protected:
            raise Refused(Code.NAMESPACE_WRITE_PROTECTED, NSID_BYTE)
    else:
        nsids = [namespaces.allocated(sqe.nsid).nsid]
    gone = [namespaces.delete(nsid) for nsid in nsids]
    actions = [Action(Do.DEALLOCATE, first=each.first, size=each.size) for each in gone]
    return 0, actions, nsids


def _create(sqe: Sqe, data: bytes, namespaces: Namespaces) -> int:
    """Create a namespace; return its identifier. Raises Refused if a field of the command or of its
    data is invalid, if no gap between namespaces is large enough, or if no identifier is free."""
    if sqe.cdw11 >> 24 != NVM_COMMAND_SET:
        raise Refused(Code.INVALID_FIELD, CDW11_BYTE + 3)
    if sqe.nsid != 0:
        raise Refused(Code.INVALID_FIELD, NSID_BYTE)
    asked = HOST_SOFTWARE_FIELDS.unpack(data)
    if asked["NCAP"] != asked["NSZE"]:
        raise Refused(Code.THIN_PROVISIONING)
    if any(asked[name] for name in ("DPS", "NMIC", "ANAGRPID", "NVMSETID")):
        raise Refused(Code.INVALID_FIELD)
    if asked["ENDGID"] not in (0, 1):
        raise Refused(Code.INVALID_FIELD)
    return namespaces.create(int(asked["NSZE"]), int(asked["FLBAS"]) & 0xF).nsid


def attach(sqe: Sqe, data: bytes, namespaces: Namespaces, controller: int) -> None:
    """Attach a namespace to the controller with identifier ``controller``, or detach the namespace
    from it. ``data``: controller list, bytes[4096]. Raises Refused if the field SEL is invalid, if
    the namespace does not exist or is already in the requested state, or if the list does not name
    exactly this controller."""
    select = sqe.cdw10 & 0xF
    if select not in (ATTACH, DETACH):
        raise Refused(Code.INVALID_FIELD, SEL_BYTE)
    namespace = namespaces.allocated(sqe.nsid)
    words = [int.from_bytes(data[at : at + 2], "little") for at in range(0, 4096, 2)]
    count, asked = words[0], words[1 : 1 + words[0]]
    if not 1 <= count <= MOST_CONTROLLERS or asked != [controller]:
        raise Refused(Code.CONTROLLER_LIST_INVALID)
    if select == ATTACH and namespace.attached:
        raise Refused(Code.NAMESPACE_ATTACHED)
    if select == DETACH and not namespace.attached:
        raise Refused(Code.NAMESPACE_NOT_ATTACHED)
    namespace.attached = select == ATTACH


def format_nvm(sqe: Sqe, namespaces: Namespaces) -> tuple[list[Action], list[int]]:
    """Change the LBA format of one or all attached namespaces; return (actions that discard the
    data of these namespaces, identifiers of the namespaces). Raises Refused if the namespace is not
    attached, if the format or the erase setting is not supported, or if a namespace is
    write-protected."""
    erase = sqe.cdw10 >> 9 & 0b111
    if erase not in (NO_ERASE, USER_DATA_ERASE):
        raise Refused(Code.INVALID_FIELD, CDW10_BYTE + 1)
    if sqe.cdw10 >> 4 & 0x1F:  # metadata and protection information
        raise Refused(Code.FORMAT_INVALID, CDW10_BYTE)
    block_format = sqe.cdw10 & 0xF | (sqe.cdw10 >> 12 & 0b11) << 4
    if block_format >= len(namespaces.capabilities.formats):
        raise Refused(Code.FORMAT_INVALID, CDW10_BYTE)
    if sqe.nsid == BROADCAST:
        nsids = namespaces.identifiers(attached=True)
    else:
        nsids = [namespaces.active(sqe.nsid).nsid]
    if any(namespaces.by_nsid[nsid].write_protected for nsid in nsids):
        raise Refused(Code.NAMESPACE_WRITE_PROTECTED, NSID_BYTE)
    do = Do.ERASE if erase == USER_DATA_ERASE else Do.DEALLOCATE
    changed = [namespaces.reformat(nsid, block_format) for nsid in nsids]
    return [Action(do, first=each.first, size=each.size) for each in changed], nsids


def sanitize(
    sqe: Sqe, state: SanitizeState, namespaces: Namespaces
) -> tuple[SanitizeState, list[Action]]:
    """Start a sanitize operation, or leave the failure state of the last operation. Return (new
    state, actions).

    After a restricted operation (AUSE is 0) has failed, only another restricted operation is
    allowed. Raises Refused if the operation is not supported, if ``state`` does not allow it, or if
    a namespace is write-protected.
    """
    action = sqe.cdw10 & 0b111
    if action == EXIT_FAILURE:
        if state.status == FAILED and not state.dword & UNRESTRICTED_EXIT:
            raise Refused(Code.SANITIZE_FAILED)
        return (SanitizeState() if state.status == FAILED else state), []
    if action != BLOCK_ERASE or sqe.cdw10 & NO_DEALLOCATE:
        raise Refused(Code.INVALID_FIELD, CDW10_BYTE)
    restricted = state.status == FAILED and not state.dword & UNRESTRICTED_EXIT
    if restricted and sqe.cdw10 & UNRESTRICTED_EXIT:
        raise Refused(Code.SANITIZE_FAILED)
    if namespaces.any_protected:
        raise Refused(Code.NAMESPACE_WRITE_PROTECTED)
    started = SanitizeState(IN_PROGRESS, dword=sqe.cdw10, progress=0)
    return started, [Action(Do.SANITIZE)]


def ended(state: SanitizeState, success: bool) -> SanitizeState:
    """Return the state after the end of the sanitize operation that ``state`` describes.
    ``success``: True if the operation has erased all data."""
    return SanitizeState(DONE if success else FAILED, success, state.dword)
