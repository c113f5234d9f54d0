//! Machines as `nvidia-smi` and the driver describe them.

use super::*;

const A100: &str = "\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-1d8fb4ab-3c40-4c2d-9a5f-4e3a0a6f1b00)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-2f0c7a51-88a1-49b6-8d93-0c4cf8d6ab01)
GPU 2: NVIDIA A100-SXM4-40GB (UUID: GPU-3a9be0d7-10bb-4a77-b5a4-6e54d7c3cd02)
GPU 3: NVIDIA A100-SXM4-40GB (UUID: GPU-3a9b11f2-7c6f-4dd2-93c7-2f4be6a5ef03)
";
const A100_QUERY: &str = "\
0, GPU-1d8fb4ab-3c40-4c2d-9a5f-4e3a0a6f1b00, NVIDIA A100-SXM4-40GB, 40960 MiB
1, GPU-2f0c7a51-88a1-49b6-8d93-0c4cf8d6ab01, NVIDIA A100-SXM4-40GB, 40960 MiB
2, GPU-3a9be0d7-10bb-4a77-b5a4-6e54d7c3cd02, NVIDIA A100-SXM4-40GB, 40960 MiB
3, GPU-3a9b11f2-7c6f-4dd2-93c7-2f4be6a5ef03, NVIDIA A100-SXM4-40GB, 40960 MiB
";
const T4: &str = "GPU 0: Tesla T4 (UUID: GPU-77c0c1de-5b6a-4f7d-a1a2-b3c4d5e6f700)\n";
const T4_QUERY: &str = "0, GPU-77c0c1de-5b6a-4f7d-a1a2-b3c4d5e6f700, Tesla T4, 15360 MiB\n";
const MIXED: &str = "\
GPU 0: Tesla T4 (UUID: GPU-aaaaaaaa-0000-4000-8000-000000000000)
GPU 1: NVIDIA A100-PCIE-40GB (UUID: GPU-bbbbbbbb-0000-4000-8000-000000000001)
GPU 2: Tesla T4 (UUID: GPU-cccccccc-0000-4000-8000-000000000002)
";
const MIG: &str = "\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)
  MIG 3g.20gb     Device  0: (UUID: MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f)
  MIG 3g.20gb     Device  1: (UUID: MIG-cba663e8-9bed-5b25-b243-5985ef7c9beb)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-63feeb45-94c6-b9cb-78ea-98e9b7a5be6b)
";
const INFORMATION: &str = "\
Model: \t\t Tesla V100-SXM2-16GB
IRQ:   \t\t 62
GPU UUID: \t GPU-d5d3a2f1-5a41-9a4e-2f3b-9d5e2c1a7b40
Video BIOS: \t 88.00.4f.00.09
Bus Type: \t PCIe
DMA Size: \t 47 bits
DMA Mask: \t 0x7fffffffffff
Bus Location: \t 0000:00:1b.0
Device Minor: \t 0
GPU Excluded:\t No
";

fn machine(listed: &str, queried: &str) -> Readings {
    let (listed, queried) = (Some(listed.to_owned()), Some(queried.to_owned()));
    Readings { listed, queried, cores: 32, ..Readings::default() }
}

fn with(mut readings: Readings, variables: &[(&'static str, &str)]) -> Readings {
    readings.variables.extend(variables.iter().map(|(name, value)| (*name, (*value).to_owned())));
    readings
}

fn asked(slots: &str) -> Request {
    Request { slots: Some(slots.parse().expect("slots")), ..Request::default() }
}

fn of(readings: &Readings) -> Devices {
    decide(readings, &Request::default()).expect("nothing was asked for")
}

/// The last two digits of the UUIDs, by type.
fn given(devices: &Devices) -> Vec<(String, Vec<String>)> {
    let end = |slot: &AgentSlot| {
        let device = slot.device.clone().unwrap_or_default();
        device[device.len().saturating_sub(2)..].to_owned()
    };
    let node = |node: &AgentNode| (node.gpu_type.to_string(), node.slots.iter().map(end).collect());
    devices.nodes.iter().map(node).collect()
}

fn one(gpu_type: &str, slots: &[&str]) -> Vec<(String, Vec<String>)> {
    vec![(gpu_type.to_owned(), slots.iter().map(|slot| (*slot).to_owned()).collect())]
}

#[test]
fn all_gpus_of_a_machine_are_slots_with_their_memory_and_a_share_of_the_cores() {
    let devices = of(&machine(A100, A100_QUERY));
    assert_eq!(given(&devices), one("a100", &["00", "01", "02", "03"]));
    let first = &devices.nodes[0].slots[0];
    assert_eq!((first.memory_bytes, first.threads), (Some(40 << 30), 8));
    let t4 = of(&machine(T4, T4_QUERY));
    assert_eq!((given(&t4), t4.nodes[0].slots[0].memory_bytes), (one("t4", &["00"]), Some(15 << 30)));
    assert!(devices.notes.is_empty() && t4.notes.is_empty());
}

#[test]
fn memory_that_is_not_told_is_not_known() {
    let query = "0, GPU-77c0c1de-5b6a-4f7d-a1a2-b3c4d5e6f700, Tesla T4, [N/A]\n";
    assert_eq!(of(&machine(T4, query)).nodes[0].slots[0].memory_bytes, None);
}

#[test]
fn several_types_are_several_nodes() {
    let devices = of(&machine(MIXED, ""));
    let expected = [("t4", vec!["00", "02"]), ("a100", vec!["01"])];
    let expected = expected.map(|(name, slots)| one(name, &slots).remove(0));
    assert_eq!(given(&devices), expected);
    // All slots have an equal share.
    assert!(devices.nodes.iter().flat_map(|node| &node.slots).all(|slot| slot.threads == 10));
}

#[test]
fn only_what_was_given_is_used() {
    let a100 = |value: &str| of(&with(machine(A100, A100_QUERY), &[("CUDA_VISIBLE_DEVICES", value)]));
    assert_eq!(given(&a100("2,0")), one("a100", &["02", "00"]));
    assert_eq!(given(&a100("GPU-2f0c7a51-88a1-49b6-8d93-0c4cf8d6ab01")), one("a100", &["01"]));
    // The beginning of a UUID, if it is one GPU's: 3a9b is that of two.
    assert_eq!(given(&a100("GPU-3a9be,GPU-1d")), one("a100", &["02", "00"]));
    assert_eq!(given(&a100("1,1")), one("a100", &["01"]));
    for none in ["", "-1", "NoDevFiles"] {
        assert_eq!(a100(none).nodes[0].gpu_type, GpuType::cpu(), "{none}");
        assert!(a100(none).notes.is_empty(), "{none}");
    }
    // As CUDA does: nothing after what is no GPU.
    for (value, slots) in [("1,7,0", vec!["01"]), ("1,GPU-3a9b,0", vec!["01"]), ("3,x", vec!["03"])] {
        let devices = a100(value);
        assert_eq!(given(&devices), one("a100", &slots), "{value}");
        assert!(devices.notes[0].contains("there is no GPU"), "{:?}", devices.notes);
    }
}

#[test]
fn numbers_on_a_mixed_machine_are_those_of_the_bus_and_that_is_said() {
    let mixed = with(machine(MIXED, ""), &[("CUDA_VISIBLE_DEVICES", "1")]);
    let devices = of(&mixed);
    assert_eq!(given(&devices), one("a100", &["01"]));
    assert!(devices.notes[0].contains("CUDA_DEVICE_ORDER=PCI_BUS_ID"), "{:?}", devices.notes);
    assert!(of(&with(mixed.clone(), &[("CUDA_DEVICE_ORDER", "PCI_BUS_ID")])).notes.is_empty());
    assert!(of(&with(mixed, &[("CUDA_VISIBLE_DEVICES", "GPU-b")])).notes.is_empty());
}

#[test]
fn a_job_of_slurm_has_what_slurm_gave_it() {
    let job = |variables: &[(&'static str, &str)]| {
        let job = with(machine(A100, A100_QUERY), &[("SLURM_JOB_ID", "42"), ("SLURM_CPUS_ON_NODE", "8")]);
        of(&with(job, variables))
    };
    let devices = job(&[("SLURM_JOB_GPUS", "2,3")]);
    assert_eq!(given(&devices), one("a100", &["02", "03"]));
    assert_eq!(devices.nodes[0].slots[0].threads, 4);
    assert_eq!(
        given(&job(&[("SLURM_JOB_GPUS", "0-3"), ("SLURM_STEP_GPUS", "1-2")])),
        one("a100", &["01", "02"])
    );
    assert_eq!(given(&job(&[("GPU_DEVICE_ORDINAL", "1")])), one("a100", &["01"]));
    assert_eq!(
        given(&job(&[("SLURM_JOB_GPUS", "2,3"), ("CUDA_VISIBLE_DEVICES", "0")])),
        one("a100", &["00"])
    );
    let none = job(&[]);
    assert_eq!(none.nodes[0].gpu_type, GpuType::cpu());
    assert!(none.notes[0].contains("--gres"), "{:?}", none.notes);
    // Two of eight, of which a control group lets it see just these: they are 0 and 1 here.
    let two = A100.lines().take(2).collect::<Vec<_>>().join("\n");
    let job = with(machine(&two, A100_QUERY), &[("SLURM_JOB_ID", "42"), ("SLURM_JOB_GPUS", "6,7")]);
    assert_eq!(given(&of(&job)), one("a100", &["00", "01"]));
}

#[test]
fn instances_are_named_and_not_used() {
    let devices = of(&machine(MIG, ""));
    assert_eq!(given(&devices), one("a100", &["6b"]));
    assert_eq!(
        devices.notes,
        ["GPU 0 is divided into instances (MIG), which are not supported: it is not used"]
    );
    let instance = [("CUDA_VISIBLE_DEVICES", "MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f")];
    let devices = of(&with(machine(MIG, ""), &instance));
    assert_eq!(devices.nodes[0].gpu_type, GpuType::cpu());
    assert!(devices.notes[0].contains("MIG"), "{:?}", devices.notes);
}

#[test]
fn without_nvidia_smi_the_driver_is_asked() {
    let unknown = INFORMATION
        .replace("GPU-d5d3a2f1-5a41-9a4e-2f3b-9d5e2c1a7b40", "GPU-????????-????-????-????-????????????");
    let information = vec![INFORMATION.to_owned(), unknown];
    let devices = of(&Readings { information, cores: 4, ..Readings::default() });
    let ids: Vec<_> = devices.nodes[0].slots.iter().map(|slot| slot.device.clone().expect("a GPU")).collect();
    assert_eq!(devices.nodes[0].gpu_type.name(), "v100");
    assert_eq!(ids, ["GPU-d5d3a2f1-5a41-9a4e-2f3b-9d5e2c1a7b40", "1"]);
}

#[test]
fn a_driver_that_does_not_answer_is_no_driver() {
    let failed = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n";
    assert_eq!(of(&machine(failed, "")).nodes[0].gpu_type, GpuType::cpu());
    assert_eq!(of(&machine("No devices found.\n", "")).nodes[0].gpu_type, GpuType::cpu());
}

#[test]
fn gpus_that_libtorch_cannot_use_are_named() {
    let devices = of(&Readings { usable: Some(0), ..machine(A100, A100_QUERY) });
    assert_eq!(devices.nodes[0].gpu_type, GpuType::cpu());
    assert_eq!(
        devices.notes,
        ["4 GPUs (a100), but this program's libtorch cannot use them: see docs/training.md"]
    );
}

#[test]
fn without_gpus_there_are_shares_of_the_cores() {
    let none = Readings { cores: 7, ..Readings::default() };
    let slots = |request: &Request| decide(&none, request).expect("cores will do").nodes.remove(0).slots;
    let slot = |threads| AgentSlot { device: None, memory_bytes: None, threads };
    assert_eq!(slots(&Request::default()), vec![slot(3); 2]);
    assert_eq!(slots(&asked("4")), vec![slot(1); 4]);
    assert_eq!(slots(&asked("16")), vec![slot(1); 16]);
    assert_eq!(slots(&Request { threads: Some(5), ..asked("2xcpu") }), vec![slot(5); 2]);
}

#[test]
fn what_is_asked_for_is_given_or_refused() {
    let mixed = machine(MIXED, "");
    assert_eq!(given(&decide(&mixed, &asked("1xt4")).expect("there are two")), one("t4", &["00"]));
    assert_eq!(given(&decide(&mixed, &asked("2")).expect("there are three")).len(), 2);
    assert_eq!(decide(&mixed, &asked("9")).expect("no more than there are").nodes[0].slots.len(), 2);
    let error = decide(&mixed, &asked("2xa100")).expect_err("there is one");
    assert_eq!(error.to_string(), "2xa100 were asked for, and this machine has 3 GPUs (1 a100, 2 t4)");
    // A head that only others work for.
    assert_eq!(decide(&mixed, &asked("0")), Ok(Devices { nodes: Vec::new(), notes: Vec::new() }));
    let devices = decide(&mixed, &asked("4xcpu")).expect("cores will do");
    assert_eq!((devices.nodes[0].gpu_type.clone(), devices.nodes[0].slots.len()), (GpuType::cpu(), 4));
    // Cores are no GPUs.
    let only = Request { only_gpus: true, ..Request::default() };
    assert_eq!(decide(&mixed, &only).expect("there are some").nodes.len(), 2);
    for request in [only.clone(), Request { only_gpus: true, ..asked("2xcpu") }] {
        let error = decide(&Readings::default(), &request).expect_err("there are none").to_string();
        assert!(error.starts_with("only GPUs were asked for, and this machine has no GPUs"), "{error}");
    }
    let unusable = Readings { usable: Some(0), ..machine(MIXED, "") };
    let error = decide(&unusable, &only).expect_err("libtorch cannot use them").to_string();
    assert!(error.contains("3 GPUs (1 a100, 2 t4), but this program's libtorch cannot use them"), "{error}");
    // Cores that go by another name.
    let devices = decide(&mixed, &Request { cpu: true, ..asked("2xa100") }).expect("cores will do");
    assert_eq!(given(&devices), one("a100", &["", ""]));
}

#[test]
fn texts_that_name_no_slots_are_refused() {
    for (text, shown) in
        [("4", "4"), ("4xcpu", "4xcpu"), ("2xA100", "2xa100"), (" 2 x rtx 2080 Ti", "2xrtx2080ti")]
    {
        assert_eq!(text.parse::<SlotsWanted>().map(|slots| slots.to_string()).as_deref(), Ok(shown));
    }
    for text in ["", "x", "4x", "x4", "-1", "1025", "a100", "2.5"] {
        assert_eq!(text.parse::<SlotsWanted>(), Err(NoSlots), "{text}");
    }
}
