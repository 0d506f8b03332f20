//! Options are taken apart, and getters return what setters set.

use super::*;

#[test]
fn each_partition_gets_a_metahive_of_its_own() {
    let options = PartitionOptions::new().metahive(MetaHiveOptions::default());
    let one = options.clone().into_parts().unwrap().1.expect("hooks are named");
    let two = options.into_parts().unwrap().1.expect("hooks are named");
    assert_eq!((one.filters.len(), two.filters.len()), (1, 1));
    assert!(!Arc::ptr_eq(&one.filters[0], &two.filters[0]));
}

#[test]
fn hooks_are_left_alone_unless_one_is_named() {
    assert!(PartitionOptions::new().logged(false).into_parts().unwrap().1.is_none());
    let off = PartitionOptions::new().metahive(MetaHiveOptions::default()).hooks(Hooks::new());
    assert!(off.into_parts().unwrap().1.is_some_and(|hooks| hooks.filters.is_empty()));
}

#[test]
fn a_value_store_leaves_a_partition_its_filters() {
    let store = Arc::new(LargeValues::new(LargeValueOptions::new()).unwrap());
    let hooks = PartitionOptions::new().value_store(store.clone()).into_parts().unwrap().1;
    assert!(hooks.is_some_and(|hooks| hooks.keeps_filters && hooks.store.is_some()));
    let filter = Arc::new(crate::PrefixDropFilter::new(["a"]));
    let options = PartitionOptions::new().filter(filter).value_store(store.clone());
    let named = options.clone().into_parts().unwrap().1.expect("hooks are named");
    assert!(!named.keeps_filters && named.filters.len() == 1);
    let without = options.without_filter(crate::PrefixDropFilter::NAME);
    let left = without.into_parts().unwrap().1.expect("hooks are named");
    assert!(left.filters.is_empty());
    let replaced = PartitionOptions::new().value_store(store).hooks(Hooks::new());
    assert!(replaced.into_parts().unwrap().1.is_some_and(|hooks| hooks.store.is_none()));
}

#[test]
fn a_getter_returns_what_its_setter_set() {
    let options = PartitionOptions::new()
        .logged(false)
        .compression(Compression::None)
        .block_bytes(1)
        .bloom_bits_per_key(2)
        .table_bytes(3)
        .level0_tables(4)
        .level_base_bytes(5)
        .level_multiplier(6)
        .prefix_extractor(PrefixExtractor::Fixed(7));
    assert!(!options.get_logged());
    assert_eq!(options.get_compression(), Compression::None);
    assert_eq!(options.get_block_bytes(), 1);
    assert_eq!(options.get_bloom_bits_per_key(), 2);
    assert_eq!(options.get_table_bytes(), 3);
    assert_eq!(options.get_level0_tables(), 4);
    assert_eq!(options.get_level_base_bytes(), 5);
    assert_eq!(options.get_level_multiplier(), 6);
    assert_eq!(options.get_prefix_extractor(), Some(PrefixExtractor::Fixed(7)));
    let options = options.prefix_extractor(None);
    assert_eq!(options.get_prefix_extractor(), None);
    let fifo = CompactionStyle::Fifo { bytes_max: 8, seconds_max: 9 };
    assert_eq!(options.compaction_style(fifo).get_compaction_style(), fifo);
}
