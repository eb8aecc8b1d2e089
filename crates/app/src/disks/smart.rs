//! A disk by its own words, told by `smartctl -j`: age, writes of its life, wear, health. Without smartctl, or on a
//! disk without SMART, nothing is known.

use larder_plan::{Disk, Kind};
use serde_json::Value;
use std::process::{Command, Stdio};

/// Bytes of a data unit of NVMe: a thousand sectors.
const NVME_UNIT: u64 = 512_000;
const GIB: u64 = 1 << 30;

/// Names under which disks count what was written to them, and bytes of one; 0: sectors. Some count megabytes under the
/// name of sectors, which shows where smartctl knows the model, and else does not.
const WRITTEN: [(&str, u64); 7] = [
    ("Total_LBAs_Written", 0),
    ("Host_Writes_32MiB", 32 << 20),
    ("Host_Writes_MiB", 1 << 20),
    ("Host_Writes_GiB", GIB),
    ("Lifetime_Writes_GiB", GIB),
    ("Total_Writes_GiB", GIB),
    ("Total_Host_Writes", GIB),
];

/// Attributes whose value, from 100 down, is the part of a life that is left, per cent.
const LEFT: [&str; 6] = [
    "Wear_Leveling_Count",
    "Media_Wearout_Indicator",
    "SSD_Life_Left",
    "Percent_Lifetime_Remain",
    "Remaining_Lifetime_Perc",
    "Drive_Life_Remaining%",
];

/// The report of smartctl on the disk at `path`.
pub fn ask(path: &str) -> Option<Value> {
    let asked =
        Command::new("smartctl").args(["-j", "-a", path]).stdin(Stdio::null()).stderr(Stdio::null()).output();
    // Its exit code has a bit for each remark; what it says counts.
    serde_json::from_slice(&asked.ok()?.stdout).ok()
}

/// Adds it to what is known.
pub fn add(disk: &mut Disk, report: &Value) {
    let text =
        |name: &str| report[name].as_str().map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
    // The kernel cuts models of ATA disks short.
    disk.model = text("model_name").or(disk.model.take());
    disk.serial = text("serial_number").or(disk.serial.take());
    disk.hours = report["power_on_time"]["hours"].as_u64();
    disk.healthy = report["smart_status"]["passed"].as_bool();
    match report["rotation_rate"].as_u64() {
        // Bridges say that all disks turn.
        Some(0) => disk.kind = Kind::Ssd,
        Some(_) if report["trim"]["supported"] == true => {
            disk.shingled.get_or_insert_with(|| "it turns and takes TRIM, as shingled disks do".to_owned());
        }
        _ => {}
    }
    let nvme = &report["nvme_smart_health_information_log"];
    disk.written = nvme["data_units_written"].as_u64().map(|units| units.saturating_mul(NVME_UNIT));
    disk.wear = nvme["percentage_used"].as_u64();
    let sector = report["logical_block_size"].as_u64().unwrap_or(512);
    for attribute in report["ata_smart_attributes"]["table"].as_array().into_iter().flatten() {
        let Some(name) = attribute["name"].as_str() else { continue };
        if let Some((_, unit)) = WRITTEN.iter().find(|(known, _)| *known == name) {
            let unit = if *unit == 0 { sector } else { *unit };
            let count = attribute["raw"]["value"].as_u64();
            disk.written = disk.written.or(count.map(|count| count.saturating_mul(unit)));
        }
        if LEFT.contains(&name) && disk.kind == Kind::Ssd {
            disk.wear = disk.wear.or(attribute["value"].as_u64().and_then(|left| 100u64.checked_sub(left)));
        }
    }
    if let Some(used) = report["endurance_used"]["current_percent"].as_u64() {
        disk.wear = Some(used);
    }
    let scsi = &report["scsi_error_counter_log"]["write"]["gigabytes_processed"];
    if let Some(written) = scsi.as_str().and_then(|text| text.parse::<f64>().ok()) {
        disk.written = disk.written.or(Some((written * 1e9) as u64));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn told(report: &Value) -> Disk {
        let mut disk = Disk::of_size("/dev/x", 1 << 40);
        add(&mut disk, report);
        disk
    }

    /// The fields that count of what smartctl 7.1 says of an NVMe disk, 7.0 of one by SATA, and 6.7 of one by SAS.
    #[test]
    fn age_writes_wear_and_health_are_read_of_three_kinds_of_disks() {
        let nvme = told(&json!({
            "device": { "name": "/dev/nvme0", "type": "nvme", "protocol": "NVMe" },
            "model_name": "INTEL SSDPEKNW010T8", "serial_number": "BTNH93710FS91P0B", "logical_block_size": 512,
            "smart_status": { "passed": true, "nvme": { "value": 0 } },
            "nvme_smart_health_information_log": {
                "critical_warning": 0, "percentage_used": 3, "data_units_read": 9511859,
                "data_units_written": 7773431, "power_on_hours": 2401, "media_errors": 0
            },
            "power_on_time": { "hours": 2401 }
        }));
        assert_eq!((nvme.hours, nvme.wear, nvme.healthy), (Some(2401), Some(3), Some(true)));
        assert_eq!(nvme.written, Some(7_773_431 * 512_000));
        assert_eq!(nvme.serial.as_deref(), Some("BTNH93710FS91P0B"));

        let sata = told(&json!({
            "model_name": "X SSD 850 PRO 128GB", "serial_number": "S24ZN902000L", "logical_block_size": 512,
            "rotation_rate": 0, "smart_status": { "passed": false },
            "ata_smart_attributes": { "revision": 1, "table": [
                { "id": 9, "name": "Power_On_Hours", "value": 99, "raw": { "value": 846, "string": "846" } },
                { "id": 177, "name": "Wear_Leveling_Count", "value": 15, "raw": { "value": 5, "string": "5" } },
                { "id": 241, "name": "Total_LBAs_Written", "value": 99, "raw": { "value": 1047174917, "string": "1047174917" } }
            ] },
            "power_on_time": { "hours": 846 }
        }));
        assert_eq!((sata.kind, sata.healthy, sata.wear), (Kind::Ssd, Some(false), Some(85)));
        assert_eq!(sata.written, Some(1_047_174_917 * 512));

        let sas = told(&json!({
            "model_name": "SEAGATE ST1200MM0088", "serial_number": "Z4028VRY0000C810BZXB", "rotation_rate": 10500,
            "smart_status": { "passed": true }, "power_on_time": { "hours": 5675, "minutes": 39 },
            "scsi_error_counter_log": { "write": { "gigabytes_processed": "806.827" } }
        }));
        assert_eq!(
            (sas.kind, sas.hours, sas.wear, sas.written),
            (Kind::Hdd, Some(5675), None, Some(806_827_000_000))
        );
    }

    #[test]
    fn a_disk_that_turns_and_takes_trim_is_shingled_and_a_counter_in_gib_is_one() {
        let shingled = told(&json!({ "rotation_rate": 5400, "trim": { "supported": true } }));
        assert!(shingled.shingled.unwrap().contains("TRIM"));
        assert_eq!(told(&json!({ "rotation_rate": 5400, "trim": { "supported": false } })).shingled, None);
        let written = json!({ "ata_smart_attributes": { "table": [
            { "name": "Lifetime_Writes_GiB", "value": 100, "raw": { "value": 2000 } }
        ] } });
        assert_eq!(told(&written).written, Some(2000 << 30));
        assert_eq!(told(&json!({})), Disk::of_size("/dev/x", 1 << 40));
        assert_eq!(told(&json!({ "smartctl": { "exit_status": 2 } })).hours, None);
    }
}
