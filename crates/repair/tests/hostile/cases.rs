//! Images that were too much once, each by its name.

use crate::image;
use larder_device::Device;
use larder_format::label::{Label, label_areas};
use larder_format::{DeviceIndex, GroupIndex};
use larder_repair::{Options, Repaired, Result, repair};
use larder_sim::{DeviceImage, SimWorld};
use std::sync::Arc;

fn labelled(mut image: DeviceImage, change: impl Fn(&mut Label)) -> DeviceImage {
    for area in label_areas(image.size()) {
        let mut label = Label::check(&image.read(area, 4096)).unwrap();
        change(&mut label);
        image.write(area, &label.encode());
    }
    image
}

fn without_roots(mut image: DeviceImage) -> DeviceImage {
    use larder_format::label::{RING_OFFSET, RING_SLOT, RING_SLOTS};
    for area in label_areas(image.size()) {
        let at = larder_format::DeviceOffset::new(area.get() + RING_OFFSET);
        image.write(at, &vec![0; RING_SLOTS as usize * RING_SLOT]);
    }
    image
}

fn repaired(images: Vec<DeviceImage>) -> Result<Repaired> {
    let devices: Vec<Arc<dyn Device>> = SimWorld::from_images(images).devices();
    let scratch = |size| Ok(SimWorld::new(&[size]).devices().remove(0));
    let options =
        Options { pool: None, commit: None, log: true, cut: true, scratch: &scratch, shown: &|_| {} };
    repair(crate::survey::world(3), &devices, &options)
}

/// Import goes by the root; repair did by the label, and made a pool of groups that the root does not have.
#[test]
fn a_label_that_names_another_group_than_the_root_does_takes_nothing_from_a_repair() {
    for group in [1, 7, u16::MAX - 1, u16::MAX] {
        let images = image::load("v9-damage").0.into_iter();
        let images = images.map(|image| labelled(image, |label| label.group = GroupIndex::new(group)));
        let found = repaired(images.collect()).unwrap_or_else(|error| panic!("group {group}: {error}"));
        assert!(found.report.root.is_some() && !found.report.trees.is_empty(), "group {group}");
    }
}

#[test]
fn labels_with_the_greatest_numbers_leave_some_for_what_repair_adds() {
    for (index, group) in [(u16::MAX, 0), (u16::MAX - 1, 0), (0, u16::MAX), (0, u16::MAX - 1)] {
        let images = image::load("v9-single").0.into_iter().map(|image| {
            let image = labelled(image, |label| {
                (label.index, label.group) = (DeviceIndex::new(index), GroupIndex::new(group));
            });
            without_roots(image)
        });
        // A pool, or an error: which one depends on what is left to go by.
        drop(repaired(images.collect()));
    }
}
