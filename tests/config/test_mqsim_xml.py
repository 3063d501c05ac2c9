"""Are MQSim's files read as MQSim means them, and is each bad one refused with one line?"""

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondie.emu.replay.mqsim import differences, quirks
from ondie.emu.replay.mqsim.address_partition import Range, ranges
from ondie.emu.replay.mqsim.parameter import INT32_MAX, parameters, parse, spelled
from ondie.emu.replay.mqsim.ssdconfig import (
    SECTOR_BYTES,
    SETS,
    Drive,
    read_drive,
    scenario_drive,
    spelled_out,
)
from ondie.emu.replay.mqsim.workload_xml import Synthetic, TraceBased, check_scenario, read_workload
from ondie.emu.units import InputError
from tests.config.mqsim_files import (
    DRIVE,
    HEAD,
    SYNTHETIC,
    TRACE,
    drive_xml,
    flow_xml,
    put,
    workload_xml,
)

CONFIGS = Path(__file__).parent.parent / "fidelity" / "mqsim" / "configs"


def drive(tmp_path, **changes) -> Drive:
    return read_drive(put(tmp_path / "ssd.xml", drive_xml(**changes)))


def scenario(tmp_path, *flows: str):
    return read_workload(put(tmp_path / "wl.xml", workload_xml(list(flows))))[0]


def refused(call, *words: str) -> str:
    """The one line with which a call is refused."""
    with pytest.raises(InputError) as caught:
        call()
    line = str(caught.value)
    assert len(line.splitlines()) == 1 and line.isprintable() and len(line) < 600
    for word in words:
        assert word in line, line
    return line


# --- what is read


def test_every_parameter_in_si_units(tmp_path):
    """Times in ps, rates per second, the rest as MQSim counts it."""
    d = drive(tmp_path)
    assert (d.pcie_lane_bandwidth_bytes_per_s, d.pcie_lane_count) == (10**9, 4)
    assert d.sata_processing_delay_ps == 400_000_000
    assert d.response_time_logging_period_length_ps == 10**9
    assert (d.data_cache_dram_data_rate_hz, d.channel_transfer_rate_hz) == (10**8, 333 * 10**6)
    assert (d.data_cache_dram_trcd_ps, d.data_cache_dram_tcl_ps, d.data_cache_dram_trp_ps) == (
        13_000, 14_000, 15_000,
    )  # fmt: skip
    reads = [getattr(d, f"page_read_latency_{k}_ps") for k in ("lsb", "csb", "msb")]
    programs = [getattr(d, f"page_program_latency_{k}_ps") for k in ("lsb", "csb", "msb")]
    assert reads == [50_000_000, 50_001_000, 50_002_000]
    assert programs == [600_000_000, 600_001_000, 600_002_000]
    assert (d.block_erase_latency_ps, d.suspend_erase_time_ps) == (3 * 10**9, 7 * 10**8)
    assert d.preferred_suspend_erase_time_for_write_ps == 700_001_000
    assert (d.overprovisioning_ratio, d.gc_exec_threshold, d.gc_hard_threshold) == (0.07, 0.05, 0.005)  # noqa: E501 # fmt: skip
    assert (d.enabled_preconditioning, d.preemptible_gc_enabled) == (False, True)
    assert (d.planes, d.page_sectors) == (16 * 4 * 2 * 2, 8)
    assert d.physical_pages == 256 * 128 * 256
    assert d.source == str(tmp_path / "ssd.xml")


def test_a_lane_of_0_985_gb(tmp_path):
    assert drive(tmp_path, PCIe_Lane_Bandwidth="0.985").pcie_lane_bandwidth_bytes_per_s == 985 * 10**6  # noqa: E501 # fmt: skip


def test_a_flow_in_si_units(tmp_path):
    flow = scenario(tmp_path, flow_xml(Channel_IDs=" 3,1, 2,1", Stop_Time="5000")).flows[0]
    assert isinstance(flow, Synthetic) and not flow.closed_loop
    assert flow.channel_ids == (1, 2, 3)  # sorted, once each, as MQSim keeps them
    assert flow.address_alignment_unit_bytes == 16 * SECTOR_BYTES
    assert flow.average_request_size_bytes == 24 * SECTOR_BYTES
    assert flow.variance_request_size_bytes == 4 * SECTOR_BYTES
    assert (flow.bandwidth_bytes_per_s, flow.stop_time_ps) == (400 * 10**6, 5_000_000)
    assert (flow.read_percentage, flow.percentage_of_hot_region, flow.seed) == (60, 20, 798)
    traced = scenario(tmp_path, flow_xml(TRACE)).flows[0]
    assert isinstance(traced, TraceBased)
    assert (traced.file_path, traced.relay_count, traced.time_unit) == (
        "traces/a.trace", 1, "NANOSECOND",
    )  # fmt: skip


def test_all_names_of_the_file_are_parameters():
    """Nothing of MQSim's file is passed over, and no parameter is ours."""
    for name, values in DRIVE.items():
        assert [k.p.name for k in SETS[name]] == list(values)
    assert {k.p.name for k in parameters(Synthetic)} == set(SYNTHETIC)
    assert {k.p.name for k in parameters(TraceBased)} == set(TRACE)
    fields = {field.name for field in dataclasses.fields(Drive)} - {"source"}
    assert fields == {k.attribute for ks in SETS.values() for k in ks} == set(spelled_out_names())


def spelled_out_names() -> list[str]:
    d = read_drive(CONFIGS / "V01.ssdconfig.xml")
    return list(spelled_out(d))


@pytest.mark.parametrize("case", ["V01", "V02", "V04", "V05", "V06", "V08", "V09", "V14", "V16", "V20"])  # noqa: E501 # fmt: skip
def test_the_shipped_pairs(case):
    d = read_drive(CONFIGS / f"{case}.ssdconfig.xml")
    (s,) = read_workload(CONFIGS / f"{case}.workload.xml")
    check_scenario(s, d)
    assert d.ideal_mapping_table and d.flash_technology == "SLC" and s.number == 1
    assert len(s.flows) == 1 and s.flows[0].priority_class == "HIGH"


def values_of(parameter):
    """Values that a field may have."""
    p = parameter.p
    if parameter.type is bool:
        return st.booleans()
    if p.choices:
        return st.sampled_from(p.choices)
    if parameter.type is float:
        return st.floats(p.least, p.most, allow_nan=False, allow_subnormal=False)
    if parameter.rate:
        return st.integers(1, 10**6).map(lambda n: n * 1000)
    if parameter.type is int:
        return st.integers(p.least, p.most).map(lambda n: n * p.scale)
    return st.lists(st.integers(0, p.most), min_size=1).map(lambda x: tuple(sorted(set(x))))


@given(st.data())
def test_spelling_and_parsing_agree(data):
    """What is written in MQSim's units is read back as it was, for every parameter."""
    known = [*parameters(Drive), *parameters(Synthetic), *parameters(TraceBased)]
    parameter = data.draw(st.sampled_from([k for k in known if k.p.name != "File_Path"]))
    value = data.draw(values_of(parameter))
    assert parse(parameter, spelled(parameter, value), "x") == value


# --- XML as it comes


def test_namespaces_comments_and_encodings(tmp_path):
    text = drive_xml()
    dressed = text.replace(
        "<Execution_Parameter_Set>",
        '<Execution_Parameter_Set xmlns:xsd="http://www.w3.org/2001/XMLSchema" '
        'xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:type="x"><!-- <Seed> -->',
    ).replace("<Seed>321</Seed>", "<Seed> 3<!-- of -->21 </Seed>")
    plain = read_drive(put(tmp_path / "a.xml", text))
    assert read_drive(put(tmp_path / "b.xml", dressed)) == plain
    for name in ("utf-8", "utf-16", "iso-8859-1", "windows-1252"):
        encoded = text.replace("us-ascii", name).encode(name)
        assert read_drive(put(tmp_path / "c.xml", encoded)) == plain
    assert read_drive(put(tmp_path / "d.xml", b"\xef\xbb\xbf" + text.replace("us-ascii", "utf-8").encode())) == plain  # noqa: E501 # fmt: skip
    assert read_drive(put(tmp_path / "e.xml", text.removeprefix(HEAD))) == plain
    assert read_drive(put(tmp_path / "f.xml", text.replace("\n", "\r\n"))) == plain


def test_case_of_values(tmp_path):
    """Enumerated values and booleans in any case, as MQSim reads them."""
    d = drive(tmp_path, Flash_Technology="tlc", Ideal_Mapping_Table="TRUE",
              Enabled_Preconditioning="False", HostInterface_Type="Nvme")  # fmt: skip
    assert d == drive(tmp_path)


def test_both_spellings(tmp_path):
    """MQSim writes one name and reads another: both are taken."""
    right = drive_xml(Preferred_suspend_erase_time_for_read="5")
    wrong = right.replace("Preferred_suspend_erase_time_for_read", "Prefered_suspend_erase_time_for_read")  # noqa: E501 # fmt: skip
    for text in (right, wrong):
        d = read_drive(put(tmp_path / "ssd.xml", text))
        assert d.preferred_suspend_erase_time_for_read_ps == 5000


BOMB = """<?xml version="1.0"?>
<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;"><!ENTITY c "&b;&b;&b;&b;">]>
<Execution_Parameter_Set>&c;</Execution_Parameter_Set>
"""
BAD_XML = [
    (BOMB, ["line 2", "document type"]),
    ('<!DOCTYPE x SYSTEM "file:///etc/passwd"><Execution_Parameter_Set/>', ["document type"]),
    ("", ["is empty"]),
    (" \n", ["is empty"]),
    ("USE_INTERNAL_PARAMS", ["USE_INTERNAL_PARAMS", "list the parameters in the file"]),
    ("Seed = 5", ["line 1", "the file is not well-formed XML"]),
    ("<Execution_Parameter_Set>", ["the file is not well-formed XML", "no element found"]),
    ("<Execution_Parameter_Set><a></b></Execution_Parameter_Set>", ["mismatched tag"]),
    ("<MQSim_IO_Scenarios/>", ['"MQSim_IO_Scenarios"', "use Execution_Parameter_Set"]),
    ("<execution_parameter_set/>", ["use Execution_Parameter_Set"]),
    ('<Execution_Parameter_Set Seed="5"/>', ['attribute "Seed"', "use an element"]),
    ("<Execution_Parameter_Set/>", ["has no Host_Parameter_Set"]),
    (b"\x00\x01\x02", ["the file is not well-formed XML"]),
    ('<?xml version="1.0" encoding="klingon"?><a/>', ["klingon"]),
    (b'<?xml version="1.0" encoding="us-ascii"?><a>\xff</a>', ["the file is not well-formed XML"]),
    ("<a>" * 50_000, ["elements deep"]),
    (drive_xml().replace("<Seed>", "5<Seed>"), ['text "5" next to its elements']),
    (drive_xml(Seed="<b>5</b>"), ["Seed contains elements; give a value"]),
    (drive_xml().replace("</Host_Parameter_Set>", "</Host_Parameter_Set><Host_Parameter_Set/>"),
     ["Host_Parameter_Set appears twice"]),
    (drive_xml().replace("Flash_Parameter_Set", "Flash_Parameter_Sets"),
     ["has no Flash_Parameter_Set", "but has Flash_Parameter_Sets"]),
    (drive_xml().replace("<Execution_Parameter_Set>", "<Execution_Parameter_Set><Seed>5</Seed>"),
     ["Seed in Execution_Parameter_Set"]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "words"), BAD_XML)
def test_bad_xml(tmp_path, text, words):
    path = put(tmp_path / "ssd.xml", text)
    refused(lambda: read_drive(path), str(path), *words)


def test_no_file(tmp_path):
    refused(lambda: read_drive(tmp_path / "none.xml"), "none.xml", "no such file")
    refused(lambda: read_drive(tmp_path), "is a folder")
    assert not (tmp_path / "none.xml").exists()  # MQSim would write its defaults there


# --- parameters of the drive

BAD_DRIVE = [
    ({"Page_Capacity": "0"}, ["Page_Capacity", '"0"', "512 to 32768"]),
    ({"Page_Capacity": "4000"}, ["Page_Capacity is 4000", "multiple of 512", "such as 4096"]),
    ({"Page_Capacity": "65536"}, ["Page_Capacity", "512 to 32768"]),
    ({"Page_Capacity": "8k"}, ['"8k"', "MQSim would stop at the first", "whole number of bytes"]),
    ({"Page_Capacity": "4096.0"}, ['"4096.0"']),
    ({"Page_Capacity": ""}, ['""']),
    ({"Page_Capacity": "-4096"}, ["512 to 32768"]),
    ({"Page_Capacity": "9" * 500}, ["Page_Capacity"]),
    ({"Flash_Channel_Width": "3"}, ["Flash_Channel_Width is 3", "1, 2, 4, 8"]),
    ({"Flash_Channel_Count": "0"}, ["Flash_Channel_Count", "from 1 to 1024"]),
    ({"Block_No_Per_Plane": "0"}, ["Block_No_Per_Plane", "from 1"]),
    ({"Page_Read_Latency_LSB": "0"}, ["Page_Read_Latency_LSB", "from 1 to 1000000000"]),
    ({"Page_Program_Latency_MSB": "1e3"}, ["Page_Program_Latency_MSB", '"1e3"']),
    ({"Block_Erase_Latency": "99999999999"}, ["Block_Erase_Latency", "10000000000"]),
    ({"Channel_Transfer_Rate": "0"}, ["Channel_Transfer_Rate", "MT/s from 1"]),
    ({"PCIe_Lane_Bandwidth": "0"}, ["PCIe_Lane_Bandwidth", "GB/s above 0"]),
    ({"PCIe_Lane_Bandwidth": "nan"}, ["PCIe_Lane_Bandwidth", '"nan"']),
    ({"PCIe_Lane_Bandwidth": "1e999"}, ["PCIe_Lane_Bandwidth"]),
    ({"IO_Queue_Depth": "65536"}, ["IO_Queue_Depth", "from 2 to 65535"]),
    ({"Overprovisioning_Ratio": "0"}, ["Overprovisioning_Ratio is 0.0", "above 0"]),
    ({"Overprovisioning_Ratio": "1"}, ["Overprovisioning_Ratio is 1.0", "below 1"]),
    ({"Overprovisioning_Ratio": "0.99999"}, ["less than one page per plane"]),
    ({"Overprovisioning_Ratio": "7 %"}, ['"7 %"', "a number from 0 to 1"]),
    ({"GC_Exec_Threshold": "0"}, ["GC_Exec_Threshold is 0.0"]),
    ({"Ideal_Mapping_Table": "yes"}, ['"yes"', "true or false", "but false as true"]),
    ({"Flash_Technology": "QLC"}, ['"QLC"', "nearest: TLC", "SLC, MLC, TLC"]),
    ({"Plane_Allocation_Scheme": "CWDD"}, ["Plane_Allocation_Scheme", '"CWDD"']),
    ({"GC_Block_Selection_Policy": "GREEDI"}, ["nearest: GREEDY"]),
    ({"Flash_Comm_Protocol": "NVDDR3"}, ["Flash_Comm_Protocol", "NVDDR2"]),
    ({"Memory_Type": "PCM"}, ["Memory_Type", "use one of FLASH"]),
    ({"Address_Mapping": "HYBRID"}, ["Address_Mapping is HYBRID", "use PAGE_LEVEL"]),
    ({"Transaction_Scheduling_Policy": "FLIN"}, ["is FLIN", "or PRIORITY_OUT_OF_ORDER"]),
    ({"Data_Cache_DRAM_Row_Size": "8191"}, ["Data_Cache_DRAM_Row_Size is 8191", "multiple"]),
    ({"Data_Cache_DRAM_Data_Rate": "0"}, ["Data_Cache_DRAM_Data_Rate", "MT/s from 1"]),
    ({"Seed": "-1"}, ["Seed", f"0 to {INT32_MAX}"]),
    ({"Page_Capacity": None}, ["Page_Capacity is missing", "MQSim would use 8192"]),
    ({"Seed": None, "CMT_Capacity": None, "Queue_Fetch_Size": None},
     ["Seed is missing (2 missing parameters)", "would use 123"]),
    ({"Page_Capasity": "5"}, ['unknown parameter "Page_Capasity"', "nearest: Page_Capacity"]),
    ({"page_capacity": "5"}, ['unknown parameter "page_capacity"', "nearest: Page_Capacity"]),
    ({"Qqqq": "5"}, ['unknown parameter "Qqqq"', "MQSim has no similar parameter"]),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "words"), BAD_DRIVE)
def test_bad_drive(tmp_path, changes, words):
    refused(lambda: drive(tmp_path, **changes), "ssd.xml", *words)


def test_an_error_names_the_line(tmp_path):
    text = drive_xml(Seed="x")
    line = text[: text.index("<Seed>")].count("\n") + 1
    refused(lambda: drive(tmp_path, Seed="x"), f"ssd.xml: line {line}: Seed")


def test_stated_twice_and_in_the_wrong_set(tmp_path):
    twice = drive_xml().replace("<Seed>321</Seed>", "<Seed>321</Seed>\n<Seed>322</Seed>")
    path = put(tmp_path / "ssd.xml", twice)
    refused(lambda: read_drive(path), "Seed is already given on line", "give it once")
    moved = drive_xml(Page_Capacity=None).replace("<Seed>", "<Page_Capacity>4096</Page_Capacity>\n<Seed>")  # noqa: E501 # fmt: skip
    path = put(tmp_path / "ssd.xml", moved)
    refused(lambda: read_drive(path), "Page_Capacity belongs to Flash_Parameter_Set")


def test_what_has_no_effect_may_be_missing(tmp_path):
    names = ("SATA_Processing_Delay", "ResponseTime_Logging_Period_Length", "CMT_Capacity",
             "CMT_Sharing_Mode", "Page_Metadat_Capacity", "Block_PE_Cycles_Limit")  # fmt: skip
    d = drive(tmp_path, **dict.fromkeys(names))
    assert (d.sata_processing_delay_ps, d.cmt_capacity_bytes) == (400_000_000, 2097152)
    for names, changes in (
        (["Page_Read_Latency_CSB"], {"Flash_Technology": "MLC"}),
        (["Page_Read_Latency_MSB", "Page_Program_Latency_CSB"], {"Flash_Technology": "SLC"}),
        (["Preferred_suspend_write_time_for_read", "Suspend_Erase_Time"],
         {"CMD_Suspension_Support": "NONE"}),
        (["GC_Hard_Threshold"], {"Preemptible_GC_Enabled": "false"}),
        (["Static_Wearleveling_Threshold"], {"Static_Wearleveling_Enabled": "false"}),
    ):  # fmt: skip
        drive(tmp_path, **dict.fromkeys(names), **changes)
        refused(lambda n=names: drive(tmp_path, **dict.fromkeys(n)), f"{names[0]} is missing")
    refused(lambda: drive(tmp_path, SATA_Processing_Delay=None, HostInterface_Type="SATA"),
            "SATA_Processing_Delay is missing")  # fmt: skip
    refused(lambda: drive(tmp_path, CMT_Capacity=None, Ideal_Mapping_Table="false"),
            "CMT_Capacity is missing", "would use 2097152")  # fmt: skip


# --- parameters of flows

BAD_FLOW = [
    ({"Read_Percentage": "101"}, ["Read_Percentage", "0 to 100"]),
    ({"Working_Set_Percentage": "0"}, ["Working_Set_Percentage", "1 to 100"]),
    ({"Average_Request_Size": "0"}, ["Average_Request_Size", "sectors from 1 to 65535"]),
    ({"Average_Request_Size": "65536"}, ["Average_Request_Size", "65535"]),
    ({"Address_Alignment_Unit": "0"}, ["Address_Alignment_Unit", "from 1"]),
    ({"Address_Distribution": "RANDOM"}, ['"RANDOM"', "nearest: RANDOM_"]),
    ({"Address_Distribution": "MIXED_STREAMING_RANDOM"}, ["does not implement it", "STREAMING"]),
    ({"Percentage_of_Hot_Region": "0"}, ["Percentage_of_Hot_Region is 0", "1 to 99"]),
    ({"Percentage_of_Hot_Region": "100"}, ["1 to 99"]),
    ({"Total_Requests_To_Generate": "0"}, ["Total_Requests_To_Generate is 0", "Stop_Time"]),
    ({"Total_Requests_To_Generate": None}, ["Total_Requests_To_Generate is missing",
                                            "MQSim would use 0"]),
    ({"Channel_IDs": ""}, ["Channel_IDs", "separated by commas"]),
    ({"Channel_IDs": "0,,1"}, ["Channel_IDs"]),
    ({"Channel_IDs": "0,-1"}, ["Channel_IDs"]),
    ({"Channel_IDs": "0;1"}, ["Channel_IDs"]),
    ({"Device_Level_Data_Caching_Mode": None}, ["is missing", "an uninitialized value"]),
    ({"Relay_Count": "1"}, ["Relay_Count belongs to the other type of flow"]),
    ({"Stop_Tine": "1"}, ['unknown parameter "Stop_Tine"', "nearest: Stop_Time"]),
    ({"Bandwidth": "0"}, ["Bandwidth", "bytes/s from 1"]),
    ({"Seed": "2147483647"}, ["Seed"]),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "words"), BAD_FLOW)
def test_bad_flow(tmp_path, changes, words):
    refused(lambda: scenario(tmp_path, flow_xml(**changes)), "wl.xml: line ", *words)


BAD_TRACE = [
    ({"File_Path": ""}, ["File_Path", "use a name"]),
    ({"Percentage_To_Be_Executed": "0"}, ["Percentage_To_Be_Executed", "1 to 100"]),
    ({"Relay_Count": "0"}, ["Relay_Count", "from 1"]),
    ({"Time_Unit": "MILLISECOND"}, ["Time_Unit", "nearest: "]),
    ({"Time_Unit": None}, ["Time_Unit is missing", "an uninitialized value"]),
]


@pytest.mark.parametrize(("changes", "words"), BAD_TRACE)
def test_bad_trace_flow(tmp_path, changes, words):
    refused(lambda: scenario(tmp_path, flow_xml(TRACE, **changes)), "wl.xml: line ", *words)


def test_bad_scenarios(tmp_path):
    def read(text):
        return lambda: read_workload(put(tmp_path / "wl.xml", text))

    refused(read(workload_xml()), "IO_Scenario is missing")
    refused(read(workload_xml([])), "scenario 1 has no flow")
    refused(read(workload_xml([flow_xml()] * 9)), "9 flows; use at most 8")
    wrong = workload_xml([flow_xml()]).replace("_Synthetic", "_Synthtic")
    refused(read(wrong), "use IO_Flow_Parameter_Set_Synthetic")
    refused(read(workload_xml([flow_xml()]).replace("IO_Scenario>", "Scenario>")),
            "Scenario is not expected here; use IO_Scenario")  # fmt: skip


def test_what_a_flow_need_not_state(tmp_path):
    """MQSim's own example states Intensity, which nothing reads, instead of Bandwidth."""
    made = scenario(tmp_path, flow_xml(Intensity="32768", Bandwidth=None,
                                       Synthetic_Generator_Type="QUEUE_DEPTH"))  # fmt: skip
    assert made.flows[0].closed_loop and len(made.skipped) == 1 and "Intensity" in made.skipped[0]
    refused(lambda: scenario(tmp_path, flow_xml(Bandwidth=None)), "Bandwidth is missing")
    scenario(tmp_path, flow_xml(Average_No_of_Reqs_in_Queue=None, Variance_Request_Size=None,
                                Request_Size_Distribution="FIXED"))  # fmt: skip
    scenario(tmp_path, flow_xml(Total_Requests_To_Generate=None, Stop_Time="1000"))
    refused(lambda: scenario(tmp_path, flow_xml(Variance_Request_Size=None)), "is missing")


@pytest.mark.parametrize(
    ("name", "value", "count"),
    [
        ("Channel_IDs", "0,16", 16),
        ("Chip_IDs", "4", 4),
        ("Die_IDs", "0,2", 2),
        ("Plane_IDs", "2", 2),
    ],
)
def test_ids_beyond_the_geometry(tmp_path, name, value, count):
    made, d = scenario(tmp_path, flow_xml(), flow_xml(**{name: value})), drive(tmp_path)
    refused(lambda: check_scenario(made, d), "wl.xml: line ", "flow 1 of scenario 1",
            f"{name} is {value}", f"has {count}; use ids from 0 to {count - 1}")  # fmt: skip


def test_a_flow_and_a_drive_that_do_not_fit(tmp_path):
    cached = flow_xml(Device_Level_Data_Caching_Mode="WRITE_CACHE")
    simple = drive(tmp_path, Caching_Mechanism="SIMPLE")
    refused(
        lambda: check_scenario(scenario(tmp_path, cached), simple), "is WRITE_CACHE", "ADVANCED"
    )
    check_scenario(scenario(tmp_path, flow_xml()), simple)
    small = drive(tmp_path, Data_Cache_Capacity="4096", Data_Cache_Sharing_Mode="EQUAL_PARTITIONING")  # noqa: E501 # fmt: skip
    check_scenario(scenario(tmp_path, cached), small)
    refused(lambda: check_scenario(scenario(tmp_path, cached, cached), small),
            "Data_Cache_Capacity is 4096", "each of 2 flows")  # fmt: skip
    few = drive(tmp_path, Block_No_Per_Plane="14")
    check_scenario(scenario(tmp_path, flow_xml()), few)
    refused(lambda: check_scenario(scenario(tmp_path, flow_xml(), flow_xml()), few),
            "Block_No_Per_Plane is 14", "at least 17")  # fmt: skip
    # an entry: two page numbers of 23 bits and 8 sectors are 54 bits, 7 bytes
    for capacity, good in (("7", True), ("6", False)):
        tiny = drive(tmp_path, Ideal_Mapping_Table="false", CMT_Capacity=capacity)
        if good:
            check_scenario(scenario(tmp_path, flow_xml()), tiny)
        else:
            refused(
                lambda d=tiny: check_scenario(scenario(tmp_path, flow_xml()), d),
                "CMT_Capacity is 6",
            )


# --- addresses


def test_ranges_of_flows(tmp_path):
    """Each plane's share is rounded down: trunc(128 * 256 * 8 * 0.93 / flows that list it)."""
    d = drive(tmp_path)
    one = scenario(tmp_path, flow_xml())
    assert ranges(d, one.flows) == [Range(0, 256 * 243_793 - 1)]
    # the first has planes 0 of the first 8 channels alone, and shares nothing
    parts = scenario(
        tmp_path,
        flow_xml(Channel_IDs="0,1,2,3,4,5,6,7", Plane_IDs="0"),
        flow_xml(Channel_IDs="8,9"),
        flow_xml(Channel_IDs="9,10"),
    )
    got = ranges(d, parts.flows)
    sizes = [8 * 4 * 2 * 243_793, 16 * 243_793 + 16 * 121_896, 16 * 121_896 + 16 * 243_793]
    assert [r.sectors for r in got] == sizes
    assert [r.first for r in got] == [0, sizes[0], sizes[0] + sizes[1]]


def test_the_seed_of_later_scenarios(tmp_path):
    d = drive(tmp_path)
    assert [scenario_drive(d, n).seed for n in (1, 2, 3)] == [321, 323, 325]


# --- quirks


def test_the_table_of_quirks():
    names = [quirk.name for quirk in quirks.QUIRKS]
    assert len(set(names)) == len(names)
    known = {k.p.name for c in (Drive, Synthetic, TraceBased) for k in parameters(c)}
    for quirk in quirks.QUIRKS:
        assert set(quirk.parameters) <= known, quirk.name
        assert quirk.treatment in (quirks.ASKED, quirks.KEPT, quirks.NAMED)
        assert quirk.does.isprintable() and quirk.right.isprintable() and quirk.does and quirk.right
    assert quirks.obeyed(False) == frozenset()
    asked = {quirk.name for quirk in quirks.QUIRKS if quirk.treatment == quirks.ASKED}
    assert quirks.obeyed(True) == asked >= {"whole_seconds", "channel_rates_rounded"}
    assert set(differences.EFFECTS) == asked


MEETS = [
    ({}, {}, "channel_rates_rounded", True),  # 333 MT/s is 3.003 ns
    ({"Channel_Transfer_Rate": "500"}, {}, "channel_rates_rounded", False),
    ({"Channel_Transfer_Rate": "2000"}, {}, "channel_rates_rounded", True),
    ({}, {}, "one_die_at_a_time", True),
    ({"Die_No_Per_Chip": "1"}, {"Die_IDs": "0"}, "one_die_at_a_time", False),
    ({}, {}, "suspension_never_issued", True),
    ({"CMD_Suspension_Support": "NONE"}, {}, "suspension_never_issued", False),
    ({}, {}, "wear_levelling", True),
    ({"Static_Wearleveling_Enabled": "false"}, {}, "wear_levelling", False),
    ({}, {}, "address_alias", False),
    ({"Block_No_Per_Plane": "10000"}, {}, "address_alias", True),  # 2.7 TB
    ({}, {}, "lost_requests", True),
    ({}, {"Read_Percentage": "100"}, "lost_requests", False),
    ({}, {}, "shared_map_cache", False),
    ({}, {"Bandwidth": "409600000", "Average_Request_Size": "8"}, "whole_rate", False),
    ({}, {"Bandwidth": "2000000", "Average_Request_Size": "8"}, "whole_rate", True),
    ({}, {}, "wrapped_requests", True),
    ({}, {"Address_Distribution": "RANDOM_UNIFORM"}, "wrapped_requests", False),
    ({}, {"Device_Level_Data_Caching_Mode": "WRITE_READ_CACHE"}, "unwritten_slot", True),
    ({}, {"Device_Level_Data_Caching_Mode": "WRITE_CACHE"}, "unwritten_slot", False),
    (
        {"Transaction_Scheduling_Policy": "PRIORITY_OUT_OF_ORDER"},
        {"Device_Level_Data_Caching_Mode": "WRITE_CACHE"},
        "eviction_class",
        True,
    ),
    (
        {"Transaction_Scheduling_Policy": "OUT_OF_ORDER"},
        {"Device_Level_Data_Caching_Mode": "WRITE_CACHE"},
        "eviction_class",
        False,
    ),
    (
        {"Transaction_Scheduling_Policy": "PRIORITY_OUT_OF_ORDER"},
        {"Device_Level_Data_Caching_Mode": "TURNED_OFF"},
        "eviction_class",
        False,
    ),
    ({}, {}, "first_size", True),
    ({}, {"Request_Size_Distribution": "FIXED"}, "first_size", False),
    ({}, {}, "deviation", True),
    ({}, {"Request_Size_Distribution": "FIXED"}, "deviation", False),
]


@pytest.mark.parametrize(("of_drive", "of_flow", "name", "met"), MEETS)
def test_which_quirks_a_run_meets(tmp_path, of_drive, of_flow, name, met):
    d, s = drive(tmp_path, **of_drive), scenario(tmp_path, flow_xml(**of_flow))
    assert (name in {quirk.name for quirk in quirks.met(d, s)}) == met
    said = differences.line(differences.Ran(d, s, {"erase_suspensions": 7}, 2 * 10**12)) or ""
    if name in differences.EFFECTS:
        assert (f"({name})" in said) == met


@pytest.mark.parametrize(
    ("of_drive", "of_flow", "end_s", "words"),
    [
        ({}, {}, 2.5, "its IOPS and bandwidth are 25.0% higher (whole_seconds)"),
        ({}, {}, 0.9, "infinite, because the run takes less than 1 s"),
        ({"Channel_Transfer_Rate": "800"}, {}, 1, "20.0% less time (channel_rates_rounded)"),
        ({"Channel_Transfer_Rate": "2000"}, {}, 1, "take no time (channel_rates_rounded)"),
        ({}, {}, 1, "the throughput by up to 2 (one_die_at_a_time)"),
        ({}, {}, 1, "(7 suspensions here): reads wait up to 3,000 us longer"),
        # 2,000,000 // 512 // 8 = 488 requests per second, every 2,049,180 ns, for 488.28
        ({}, {"Bandwidth": "2000000", "Average_Request_Size": "8"}, 1, "differs by 0.06%"),
    ],
)
def test_how_far_a_run_is_from_mqsim(tmp_path, of_drive, of_flow, end_s, words):
    d, s = drive(tmp_path, **of_drive), scenario(tmp_path, flow_xml(**of_flow))
    ran = differences.Ran(d, s, {"erase_suspensions": 7}, int(end_s * 10**12))
    line = differences.line(ran)
    assert words in line and line.endswith("--quirks reproduces them")


def test_a_run_that_is_hardly_other_than_mqsims(tmp_path):
    """Simultaneous events, which every run has, are the only difference; a collection is the only
    reason to name writes that wait forever."""
    plain = {
        "Channel_Transfer_Rate": "500",
        "Die_No_Per_Chip": "1",
        "CMD_Suspension_Support": "NONE",
    }
    flow = {
        "Die_IDs": "0",
        "Address_Distribution": "RANDOM_UNIFORM",
        "Request_Size_Distribution": "FIXED",
        "Bandwidth": "409600000",
        "Average_Request_Size": "8",
    }
    d, s = drive(tmp_path, **plain), scenario(tmp_path, flow_xml(**flow))
    line = differences.line(differences.Ran(d, s, {"collections": 0}, 3 * 10**12))
    assert line.count("(") == 1 and "(event_order)" in line
    line = differences.line(differences.Ran(d, s, {"collections": 1}, 3 * 10**12))
    assert line.count("(") == 2 and "(stalled_writes)" in line
