"""Between this project's data and OpenFlow 1.3 on the wire, by os-ken's message classes.

Only os-ken's encoding is used, not its event machinery: see docs/decisions/sdn.md.
"""

from __future__ import annotations

import base64
import logging
import struct
import time
from collections.abc import Iterable
from ipaddress import ip_address
from typing import Any

from os_ken.ofproto import ofproto_parser
from os_ken.ofproto import ofproto_v1_3 as of
from os_ken.ofproto import ofproto_v1_3_parser as ofp
from os_ken.ofproto.ofproto_protocol import ProtocolDesc

from ropewalk.sdn.openflow import framing, roles
from ropewalk.sdn.openflow.events import Confirmed, FlowRemoved, PacketIn, Port
from ropewalk.sdn.openflow.program import (
    CONTROLLER,
    COOKIE,
    Action,
    AskMeterStatistics,
    AskPortStatistics,
    Bucket,
    CheckLarger,
    Confirm,
    DecrementTtl,
    Flow,
    FlowMod,
    Foreign,
    Group,
    GroupMod,
    HashToSlot,
    Message,
    Meter,
    MeterMod,
    Move,
    Output,
    PacketOut,
    Resubmit,
    Scalar,
    SetField,
    ToGroup,
    Track,
)

VERSION = of.OFP_VERSION
HEADER_BYTES = 8
WHOLE_FRAME = 0xFFFF
"""OFPCML_NO_BUFFER."""
IGNORED = frozenset({of.OFPT_EXPERIMENTER})
"""Types that a sound switch may send and nobody waits for."""
# It writes a trace for each message it cannot read; here that is counted.
logging.getLogger("os_ken.ofproto.ofproto_parser").setLevel(logging.CRITICAL + 1)
_DESCRIPTION = ProtocolDesc(version=VERSION)
_RESUBMIT_IN_PORT = 0xFFF8
_NO_TABLE = 0xFF
_COMMIT = 1
_NAT_SOURCE = 1
_NICIRA = 0x2320
_CHECK_PKT_LARGER = 49
_REGISTER_0 = 0x0001_0004
_HASH_PORTS_TOO = 3
"""NX_HASH_FIELDS_SYMMETRIC_L3L4_UDP, a name that os-ken lacks."""
_MODULO = 0
_WHOLE_REGISTER = 31
_UNNAMED = {"nd_reserved": (0x1000 << 7 | 1, 4), "nd_options_type": (0x1000 << 7 | 2, 1)}
"""Fields of Open vSwitch whose names os-ken lacks: class and number, bytes."""
_NAMES = {f"field_{number}": (name, size) for name, (number, size) in _UNNAMED.items()}
_PACKET_IN = struct.Struct("!IHBBQHH")
_PACKET_OUT = struct.Struct("!BBHIIIH6xHHIH6x")
_CONFIRM = 0x8000_0000
"""In the transaction numbers of `Confirm`."""
_OXM_IN_PORT = 0x8000_0004
_KINDS = {"all": of.OFPGT_ALL, "select": of.OFPGT_SELECT, "ff": of.OFPGT_FF}
_KIND_NAMES = {number: name for name, number in _KINDS.items()}
_COMMANDS = {"add": of.OFPGC_ADD, "modify": of.OFPGC_MODIFY, "delete": of.OFPGC_DELETE}


class DecodeError(Exception):
    """Bytes that are not an OpenFlow 1.3 message."""


def decode(data: bytes) -> Any:
    """One message of os-ken's classes. A greeting is only recognised, its contents are not read.

    Raises:
        DecodeError: whatever is wrong with the bytes, and for types that are not read.
    """
    if data[:2] == bytes([VERSION, framing.HELLO]):
        return hello()
    try:
        message = framing.checked(data)
        version, kind, length, transaction = ofproto_parser.header(message)
        parsed = ofproto_parser.msg(_DESCRIPTION, version, kind, length, transaction, message)
    # os-ken raises all that its parsers stumble over, from IndexError to KeyError.
    except Exception as error:
        raise DecodeError(f"{type(error).__name__}: {error}") from error
    if parsed is None:
        raise DecodeError("not understood")
    return parsed


def is_packet_in(data: bytes) -> bool:
    """Whether a message is a packet-in, which `packet_in` reads."""
    return data[:2] == bytes((VERSION, of.OFPT_PACKET_IN))


def packet_in(data: bytes) -> PacketIn:
    """A packet-in, without os-ken's classes: these are as many as packets.

    Raises:
        DecodeError: when it is cut short or names no port.
    """
    try:
        _, total, _, table, _, kind, length = _PACKET_IN.unpack_from(data, HEADER_BYTES)
        fields = HEADER_BYTES + _PACKET_IN.size
        end = fields + length - 4
        port = None
        while fields + 4 <= end:
            (header,) = struct.unpack_from("!I", data, fields)
            if header == _OXM_IN_PORT:
                (port,) = struct.unpack_from("!I", data, fields + 4)
                break
            fields += 4 + (header & 0xFF)
    except struct.error as error:
        raise DecodeError(f"a packet-in cut short: {error}") from error
    start = HEADER_BYTES + _PACKET_IN.size - 4 + (length + 7) // 8 * 8 + 2
    if kind != 1 or length < 4 or port is None or start > len(data):
        raise DecodeError("a packet-in without a port or a packet")
    return PacketIn(port, table, bytes(data[start:]), total, time.monotonic())


def flow_removed(message: Any) -> FlowRemoved:
    """A flow-removed message of os-ken's classes."""
    fields = tuple(sorted(message.match.items()))
    return FlowRemoved(message.table_id, fields, message.packet_count, message.byte_count)


def confirmed(message: Any) -> Confirmed:
    """The answer to a `Confirm`."""
    return Confirmed(message.xid & ~_CONFIRM)


def encode(message: Message, transaction: int) -> bytes:
    """A message of a policy in bytes."""
    if isinstance(message, PacketOut) and len(message.actions) == 1:
        (action,) = message.actions
        if isinstance(action, Output):
            return _packet_out(message, action, transaction)
    if isinstance(message, Confirm):
        transaction = _CONFIRM | message.number
    return serialize(_message(message), transaction)


def serialize(message: Any, transaction: int) -> bytes:
    """A message of os-ken's classes in bytes."""
    message.set_xid(transaction)
    message.serialize()
    return bytes(message.buf)


def hello() -> Any:
    """The first message of a connection: this end speaks 1.3."""
    return ofp.OFPHello(_DESCRIPTION, [ofp.OFPHelloElemVersionBitmap([VERSION])])


def features_request() -> Any:
    """Asks which switch this is."""
    return ofp.OFPFeaturesRequest(_DESCRIPTION)


def echo_reply(data: bytes) -> Any:
    """Answers the switch's question whether anybody is there."""
    return ofp.OFPEchoReply(_DESCRIPTION, data)


def echo_request() -> Any:
    """Asks the switch whether it is there."""
    return ofp.OFPEchoRequest(_DESCRIPTION, b"")


def role_request(role: int, generation: int) -> Any:
    """Asks to be something at the switch, OFPCR_ROLE_NOCHANGE for what it is."""
    return ofp.OFPRoleRequest(_DESCRIPTION, role, generation)


def beacon(rank: int, transaction: int) -> bytes:
    """What makes the switch hand a master's beacon to all controllers."""
    action = Output(CONTROLLER, WHOLE_FRAME)
    return _packet_out(PacketOut(roles.beacon(rank), (action,), roles.IN_PORT), action, transaction)


def port_description_request() -> Any:
    """Asks for the ports."""
    return ofp.OFPPortDescStatsRequest(_DESCRIPTION, 0)


def flows_request() -> Any:
    """Asks for this project's flows."""
    return ofp.OFPFlowStatsRequest(
        _DESCRIPTION,
        0,
        of.OFPTT_ALL,
        of.OFPP_ANY,
        of.OFPG_ANY,
        COOKIE,
        0xFFFF_FFFF_FFFF_FFFF,
        ofp.OFPMatch(),
    )


def groups_request() -> Any:
    """Asks for all groups."""
    return ofp.OFPGroupDescStatsRequest(_DESCRIPTION, 0)


def port(description: Any) -> Port:
    """A port as a policy sees it."""
    down = bool(description.config & of.OFPPC_PORT_DOWN) or bool(
        description.state & of.OFPPS_LINK_DOWN
    )
    name = description.name
    text = name.decode(errors="replace") if isinstance(name, bytes) else str(name)
    return Port(description.port_no, text.rstrip("\0"), description.hw_addr, not down)


def flow(statistics: Any) -> Flow:
    """A flow of a flow statistics reply."""
    actions: list[Action] = []
    for instruction in statistics.instructions:
        if getattr(instruction, "type", None) == of.OFPIT_APPLY_ACTIONS:
            actions += _decode_actions(instruction.actions)
        elif getattr(instruction, "type", None) == of.OFPIT_METER:
            actions.insert(0, Meter(instruction.meter_id))
        else:
            actions.append(Foreign(str(instruction)))
    fields = tuple(sorted(statistics.match.items()))
    return Flow(statistics.table_id, statistics.priority, fields, tuple(actions))


def group(statistics: Any) -> Group:
    """A group of a group description reply."""
    buckets = tuple(
        Bucket(tuple(_decode_actions(bucket.actions)), bucket.weight, bucket.watch_port)
        for bucket in statistics.buckets
    )
    return Group(
        statistics.group_id, _KIND_NAMES.get(statistics.type, str(statistics.type)), buckets
    )


def _packet_out(message: PacketOut, action: Output, transaction: int) -> bytes:
    # As many as packets that are replayed, so without os-ken's classes.
    head = _PACKET_OUT.pack(
        VERSION,
        of.OFPT_PACKET_OUT,
        _PACKET_OUT.size + len(message.data),
        transaction,
        of.OFP_NO_BUFFER,
        message.in_port,
        16,
        of.OFPAT_OUTPUT,
        16,
        action.port,
        action.bytes_max,
    )
    return head + message.data


def _message(message: Message) -> Any:
    match message:
        case FlowMod(flow, remove, tell):
            return _flow_mod(flow, remove, tell)
        case MeterMod():
            return _meter_mod(message)
        case Confirm():
            return ofp.OFPBarrierRequest(_DESCRIPTION)
        case GroupMod(command, group):
            if any(isinstance(action, Track) for b in group.buckets for action in b.actions):
                raise ValueError(
                    f"group {group.number}: os-ken states a wrong length for ct() in a bucket; "
                    "resubmit to a table that has it"
                )
            buckets = [
                ofp.OFPBucket(
                    bucket.weight, bucket.watch_port, of.OFPG_ANY, _encode_actions(bucket.actions)
                )
                for bucket in group.buckets
            ]
            return ofp.OFPGroupMod(
                _DESCRIPTION,
                _COMMANDS[command],
                _KINDS.get(group.kind, of.OFPGT_ALL),
                group.number,
                [] if command == "delete" else buckets,
            )
        case PacketOut(data, actions, in_port):
            return ofp.OFPPacketOut(
                _DESCRIPTION, of.OFP_NO_BUFFER, in_port, _encode_actions(actions), data
            )
        case AskPortStatistics():
            return ofp.OFPPortStatsRequest(_DESCRIPTION, 0, of.OFPP_ANY)
        case AskMeterStatistics(number):
            return ofp.OFPMeterStatsRequest(_DESCRIPTION, 0, number)


def _meter_mod(meter: MeterMod) -> Any:
    flags = of.OFPMF_PKTPS | of.OFPMF_BURST
    number = meter.number or of.OFPM_ALL
    if not meter.rate:
        return ofp.OFPMeterMod(_DESCRIPTION, of.OFPMC_DELETE, flags, number, [])
    bands = [ofp.OFPMeterBandDrop(meter.rate, meter.burst)]
    return ofp.OFPMeterMod(_DESCRIPTION, of.OFPMC_ADD, flags, number, bands)


def _flow_mod(flow: Flow, remove: bool, tell: bool) -> Any:
    instructions: list[Any] = []
    actions = flow.actions
    if actions and not remove:
        if isinstance(actions[0], Meter):
            instructions.append(ofp.OFPInstructionMeter(actions[0].number))
            actions = actions[1:]
        instructions.append(
            ofp.OFPInstructionActions(of.OFPIT_APPLY_ACTIONS, _encode_actions(actions))
        )
    return ofp.OFPFlowMod(
        _DESCRIPTION,
        cookie=COOKIE,
        table_id=flow.table,
        command=of.OFPFC_DELETE_STRICT if remove else of.OFPFC_ADD,
        priority=flow.priority,
        out_port=of.OFPP_ANY,
        out_group=of.OFPG_ANY,
        flags=of.OFPFF_SEND_FLOW_REM if tell else 0,
        match=ofp.OFPMatch(**dict(flow.match)),
        instructions=instructions,
    )


def _encode_actions(actions: Iterable[Action]) -> list[Any]:
    return [_encode_action(action) for action in actions]


def _encode_action(action: Action) -> Any:
    match action:
        case Output(port, bytes_max):
            return ofp.OFPActionOutput(port, bytes_max)
        case SetField(field, value):
            return _encode_set_field(field, value)
        case Move(source, target, bits):
            return ofp.NXActionRegMove(src_field=source, dst_field=target, n_bits=bits)
        case ToGroup(number):
            return ofp.OFPActionGroup(number)
        case Resubmit(table):
            return ofp.NXActionResubmitTable(in_port=_RESUBMIT_IN_PORT, table_id=table)
        case DecrementTtl():
            return ofp.OFPActionDecNwTtl()
        case Track():
            return _encode_track(action)
        case _:
            return _encode_extension(action)


def _encode_extension(action: Action) -> Any:
    """Open vSwitch's own actions, but for the most common."""
    match action:
        case CheckLarger(size):
            data = struct.pack("!HHHI6x", _CHECK_PKT_LARGER, size, 0, _REGISTER_0)
            return ofp.OFPActionExperimenterUnknown(_NICIRA, data)
        case HashToSlot(slots):
            return ofp.NXActionMultipath(
                fields=_HASH_PORTS_TOO,
                basis=0,
                algorithm=_MODULO,
                max_link=slots - 1,
                arg=0,
                ofs_nbits=_WHOLE_REGISTER,
                dst="reg1",
            )
        case _:
            raise ValueError(f"{action} cannot be written here")


def _encode_set_field(field: str, value: Scalar) -> Any:
    if field not in _UNNAMED:
        return ofp.OFPActionSetField(**{field: value})
    number, size = _UNNAMED[field]
    # os-ken takes values of fields it does not know in base 64.
    text = base64.b64encode(int(value).to_bytes(size, "big")).decode()
    return ofp.OFPActionSetField(**{f"field_{number}": text})


def _encode_track(track: Track) -> Any:
    inner: list[Any] = []
    if track.mark is not None:
        inner.append(ofp.OFPActionSetField(ct_mark=track.mark))
    # NAT comes last: os-ken pads it only at the end of the list.
    if track.nat is not None:
        flags = _NAT_SOURCE if track.nat else 0
        address = {}
        if track.nat:
            version = ip_address(track.nat).version
            address = {f"range_ipv{version}_min": track.nat}
        inner.append(ofp.NXActionNAT(flags=flags, **address))
    return ofp.NXActionCT(
        flags=_COMMIT if track.commit else 0,
        zone_src="",
        zone_ofs_nbits=track.zone,
        recirc_table=_NO_TABLE if track.table is None else track.table,
        alg=0,
        actions=inner,
    )


def _decode_actions(actions: Iterable[Any]) -> list[Action]:
    return [_decode_action(action) for action in actions]


def _decode_action(action: Any) -> Action:
    match action:
        case ofp.OFPActionOutput():
            # The switch gives back a length for the controller only.
            bytes_max = action.max_len if action.port == of.OFPP_CONTROLLER else 0
            return Output(action.port, bytes_max)
        case ofp.OFPActionSetField():
            return _decode_set_field(action.key, action.value)
        case ofp.NXActionMultipath(fields=3, basis=0, algorithm=0, arg=0, ofs_nbits=31, dst="reg1"):
            return HashToSlot(action.max_link + 1)
        case ofp.NXActionRegMove(src_ofs=0, dst_ofs=0):
            # Open vSwitch answers with the older names of the same fields.
            names = (action.src_field, action.dst_field)
            source, target = (name.removesuffix("_nxm") for name in names)
            return Move(source, target, action.n_bits)
        case ofp.OFPActionGroup():
            return ToGroup(action.group_id)
        case ofp.NXActionResubmitTable():
            return Resubmit(action.table_id)
        case ofp.OFPActionDecNwTtl():
            return DecrementTtl()
        case ofp.NXActionCT():
            return _decode_track(action)
        case _:
            return _decode_unknown(action)


def _decode_set_field(field: str, value: Any) -> Action:
    if field not in _NAMES:
        return SetField(field, value)
    name, size = _NAMES[field]
    data = base64.b64decode(value)
    if len(data) != size:
        return Foreign(f"{name} of {len(data)} bytes")
    return SetField(name, int.from_bytes(data, "big"))


def _decode_track(action: Any) -> Action:
    nat: str | None = None
    mark: int | None = None
    for inner in action.actions:
        match inner:
            case ofp.NXActionNAT():
                nat = inner.range_ipv4_min or inner.range_ipv6_min or ""
            case ofp.OFPActionSetField(key="ct_mark"):
                mark = inner.value
            case _:
                return Foreign(str(action))
    table = None if action.recirc_table == _NO_TABLE else action.recirc_table
    return Track(action.zone_ofs_nbits, bool(action.flags & _COMMIT), table, nat, mark)


def _decode_unknown(action: Any) -> Action:
    # os-ken lacks a class for check_pkt_larger and hands over what follows the subtype, or the
    # subtype with it.
    subtype = getattr(action, "subtype", None)
    data = bytes(getattr(action, "data", b"") or b"")
    if subtype == _CHECK_PKT_LARGER and len(data) >= 2:
        return CheckLarger(int(struct.unpack_from("!H", data)[0]))
    return Foreign(str(action))
