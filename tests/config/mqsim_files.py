"""MQSim's two files as dictionaries, for tests to change and write."""

from pathlib import Path

from ondie.emu.replay.mqsim.ssdconfig import DEVICE_SET, FLASH_SET, HOST_SET

HEAD = '<?xml version="1.0" encoding="us-ascii"?>\n'
DRIVE = {
    HOST_SET: {
        "PCIe_Lane_Bandwidth": "1.0",
        "PCIe_Lane_Count": "4",
        "SATA_Processing_Delay": "400000",
        "Enable_ResponseTime_Logging": "false",
        "ResponseTime_Logging_Period_Length": "1000000",
    },
    DEVICE_SET: {
        "Seed": "321",
        "Enabled_Preconditioning": "false",
        "Memory_Type": "FLASH",
        "HostInterface_Type": "NVME",
        "IO_Queue_Depth": "65535",
        "Queue_Fetch_Size": "512",
        "Caching_Mechanism": "ADVANCED",
        "Data_Cache_Sharing_Mode": "SHARED",
        "Data_Cache_Capacity": "268435456",
        "Data_Cache_DRAM_Row_Size": "8192",
        "Data_Cache_DRAM_Data_Rate": "100",
        "Data_Cache_DRAM_Data_Busrt_Size": "1",
        "Data_Cache_DRAM_tRCD": "13",
        "Data_Cache_DRAM_tCL": "14",
        "Data_Cache_DRAM_tRP": "15",
        "Address_Mapping": "PAGE_LEVEL",
        "Ideal_Mapping_Table": "true",
        "CMT_Capacity": "2097152",
        "CMT_Sharing_Mode": "SHARED",
        "Plane_Allocation_Scheme": "CWDP",
        "Transaction_Scheduling_Policy": "OUT_OF_ORDER",
        "Overprovisioning_Ratio": "0.07",
        "GC_Exec_Threshold": "0.05000",
        "GC_Block_Selection_Policy": "GREEDY",
        "Use_Copyback_for_GC": "false",
        "Preemptible_GC_Enabled": "true",
        "GC_Hard_Threshold": "0.005000",
        "Dynamic_Wearleveling_Enabled": "true",
        "Static_Wearleveling_Enabled": "true",
        "Static_Wearleveling_Threshold": "100",
        "Preferred_suspend_erase_time_for_read": "700000",
        "Preferred_suspend_erase_time_for_write": "700001",
        "Preferred_suspend_write_time_for_read": "100000",
        "Flash_Channel_Count": "16",
        "Flash_Channel_Width": "1",
        "Channel_Transfer_Rate": "333",
        "Chip_No_Per_Channel": "4",
        "Flash_Comm_Protocol": "NVDDR2",
    },
    FLASH_SET: {
        "Flash_Technology": "TLC",
        "CMD_Suspension_Support": "PROGRAM_ERASE",
        "Page_Read_Latency_LSB": "50000",
        "Page_Read_Latency_CSB": "50001",
        "Page_Read_Latency_MSB": "50002",
        "Page_Program_Latency_LSB": "600000",
        "Page_Program_Latency_CSB": "600001",
        "Page_Program_Latency_MSB": "600002",
        "Block_Erase_Latency": "3000000",
        "Block_PE_Cycles_Limit": "10000",
        "Suspend_Erase_Time": "700000",
        "Suspend_Program_Time": "100000",
        "Die_No_Per_Chip": "2",
        "Plane_No_Per_Die": "2",
        "Block_No_Per_Plane": "128",
        "Page_No_Per_Block": "256",
        "Page_Capacity": "4096",
        "Page_Metadat_Capacity": "448",
    },
}
COMMON = {
    "Priority_Class": "HIGH",
    "Device_Level_Data_Caching_Mode": "TURNED_OFF",
    "Channel_IDs": ",".join(map(str, range(16))),
    "Chip_IDs": "0,1,2,3",
    "Die_IDs": "0,1",
    "Plane_IDs": "0,1",
    "Initial_Occupancy_Percentage": "70",
}
SYNTHETIC = COMMON | {
    "Working_Set_Percentage": "85",
    "Synthetic_Generator_Type": "BANDWIDTH",
    "Read_Percentage": "60",
    "Address_Distribution": "RANDOM_HOTCOLD",
    "Percentage_of_Hot_Region": "20",
    "Generated_Aligned_Addresses": "true",
    "Address_Alignment_Unit": "16",
    "Request_Size_Distribution": "NORMAL",
    "Average_Request_Size": "24",
    "Variance_Request_Size": "4",
    "Seed": "798",
    "Average_No_of_Reqs_in_Queue": "7",
    "Bandwidth": "400000000",
    "Stop_Time": "0",
    "Total_Requests_To_Generate": "3000",
}
TRACE = COMMON | {
    "File_Path": "traces/a.trace",
    "Percentage_To_Be_Executed": "100",
    "Relay_Count": "1",
    "Time_Unit": "NANOSECOND",
}


def elements(values: dict[str, str]) -> str:
    """Values as elements."""
    return "".join(f"<{name}>{value}</{name}>\n" for name, value in values.items())


def drive_xml(**changes: str | None) -> str:
    """An ssdconfig.xml, with parameters changed, or left out where None; each in its own set."""
    sets = {name: dict(values) for name, values in DRIVE.items()}
    _change(sets, changes)
    inner = f"<{FLASH_SET}>\n{elements(sets[FLASH_SET])}</{FLASH_SET}>\n"
    host = f"<{HOST_SET}>\n{elements(sets[HOST_SET])}</{HOST_SET}>\n"
    device = f"<{DEVICE_SET}>\n{elements(sets[DEVICE_SET])}{inner}</{DEVICE_SET}>\n"
    return f"{HEAD}<Execution_Parameter_Set>\n{host}{device}</Execution_Parameter_Set>\n"


def _change(sets: dict[str, dict[str, str]], changes: dict[str, str | None]) -> None:
    for name, value in changes.items():
        owner = next((s for s in sets.values() if name in s), sets[DEVICE_SET])
        if value is None:
            del owner[name]
        else:
            owner[name] = value


def flow_xml(base: dict[str, str] = SYNTHETIC, **changes: str | None) -> str:
    """One flow."""
    kind = "Trace_Based" if "File_Path" in base else "Synthetic"
    sets = {DEVICE_SET: dict(base)}
    _change(sets, changes)
    tag = f"IO_Flow_Parameter_Set_{kind}"
    return f"<{tag}>\n{elements(sets[DEVICE_SET])}</{tag}>\n"


def workload_xml(*scenarios: list[str]) -> str:
    """A workload.xml of scenarios, each a list of flows."""
    inner = "".join(f"<IO_Scenario>\n{''.join(flows)}</IO_Scenario>\n" for flows in scenarios)
    return f"{HEAD}<MQSim_IO_Scenarios>\n{inner}</MQSim_IO_Scenarios>\n"


def put(path: Path, text: str | bytes) -> Path:
    """Write a file."""
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path
