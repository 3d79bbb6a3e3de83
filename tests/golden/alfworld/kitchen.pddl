; A kitchen of few things, made for the cases that drawn games leave out: receptacles at one location, an object in
; two of them, one that is said to be elsewhere, one that lies on nothing, an open drawer, a cabinet out of reach.
(define (problem kitchen)
(:domain alfred)
(:objects
agent1 - agent
AppleType BreadType DeskLampType KnifeType MugType SpoonType StatueType - otype
CabinetType CounterTopType DrawerType FridgeType MicrowaveType ShelfType SideTableType SinkBasinType - rtype
Apple_bar__plus_01 Apple_bar__plus_02 Bread_bar__plus_01 DeskLamp_bar__plus_01 Knife_bar__plus_01 - object
Mug_bar__plus_01 Spoon_bar__plus_01 Statue_bar__plus_01 Window_bar__plus_01 Unheard_bar__plus_01 - object
Cabinet_bar__plus_01 CounterTop_bar__plus_01 Drawer_bar__plus_01 Drawer_bar__plus_02 - receptacle
Fridge_bar__plus_01 Microwave_bar__plus_01 Shelf_bar__plus_01 SideTable_bar__plus_01 - receptacle
Sink_bar__plus_01_bar_SinkBasin - receptacle
loc_bar_1 loc_bar_2 loc_bar_3 loc_bar_4 loc_bar_5 loc_bar_6 loc_bar_9 - location
)
(:init
(= (totalCost) 0)
(= (distance loc_bar_1 loc_bar_2) 3)
(atLocation agent1 loc_bar_9)
(receptacleType Cabinet_bar__plus_01 CabinetType)
(receptacleType CounterTop_bar__plus_01 CounterTopType) (receptacleAtLocation CounterTop_bar__plus_01 loc_bar_1)
(receptacleType Sink_bar__plus_01_bar_SinkBasin SinkBasinType)
(receptacleAtLocation Sink_bar__plus_01_bar_SinkBasin loc_bar_1)
(receptacleType Drawer_bar__plus_01 DrawerType) (receptacleAtLocation Drawer_bar__plus_01 loc_bar_1)
(openable Drawer_bar__plus_01)
(receptacleType Drawer_bar__plus_02 DrawerType) (receptacleAtLocation Drawer_bar__plus_02 loc_bar_2)
(openable Drawer_bar__plus_02)
(opened Drawer_bar__plus_02)
(receptacleType Fridge_bar__plus_01 FridgeType) (receptacleAtLocation Fridge_bar__plus_01 loc_bar_3)
(openable Fridge_bar__plus_01)
(receptacleType Microwave_bar__plus_01 MicrowaveType) (receptacleAtLocation Microwave_bar__plus_01 loc_bar_4)
(openable Microwave_bar__plus_01)
(receptacleType SideTable_bar__plus_01 SideTableType) (receptacleAtLocation SideTable_bar__plus_01 loc_bar_5)
(receptacleType Shelf_bar__plus_01 ShelfType) (receptacleAtLocation Shelf_bar__plus_01 loc_bar_6)
(canContain CounterTopType AppleType) (canContain CounterTopType BreadType) (canContain CounterTopType KnifeType)
(canContain SinkBasinType AppleType) (canContain SinkBasinType KnifeType) (canContain SinkBasinType MugType)
(canContain DrawerType KnifeType) (canContain DrawerType AppleType) (canContain DrawerType SpoonType)
(canContain FridgeType AppleType) (canContain FridgeType MugType) (canContain FridgeType BreadType)
(canContain MicrowaveType AppleType) (canContain MicrowaveType MugType)
(canContain SideTableType AppleType) (canContain SideTableType MugType) (canContain CabinetType MugType)
(objectType Apple_bar__plus_01 AppleType) (inReceptacle Apple_bar__plus_01 CounterTop_bar__plus_01)
(objectAtLocation Apple_bar__plus_01 loc_bar_1) (pickupable Apple_bar__plus_01) (sliceable Apple_bar__plus_01)
(cleanable Apple_bar__plus_01) (heatable Apple_bar__plus_01) (coolable Apple_bar__plus_01)
(objectType Apple_bar__plus_02 AppleType) (inReceptacle Apple_bar__plus_02 Drawer_bar__plus_01)
(objectAtLocation Apple_bar__plus_02 loc_bar_1) (pickupable Apple_bar__plus_02) (sliceable Apple_bar__plus_02)
(cleanable Apple_bar__plus_02) (heatable Apple_bar__plus_02) (coolable Apple_bar__plus_02)
(objectType Bread_bar__plus_01 BreadType) (inReceptacle Bread_bar__plus_01 Shelf_bar__plus_01)
(objectAtLocation Bread_bar__plus_01 loc_bar_5) (pickupable Bread_bar__plus_01) (sliceable Bread_bar__plus_01)
(objectType Knife_bar__plus_01 KnifeType) (inReceptacle Knife_bar__plus_01 Drawer_bar__plus_02)
(objectAtLocation Knife_bar__plus_01 loc_bar_2) (pickupable Knife_bar__plus_01) (cleanable Knife_bar__plus_01)
(objectType Mug_bar__plus_01 MugType) (inReceptacle Mug_bar__plus_01 Fridge_bar__plus_01)
(objectAtLocation Mug_bar__plus_01 loc_bar_3) (pickupable Mug_bar__plus_01) (isReceptacleObject Mug_bar__plus_01)
(heatable Mug_bar__plus_01)
(objectType Spoon_bar__plus_01 SpoonType) (inReceptacle Spoon_bar__plus_01 Fridge_bar__plus_01)
(inReceptacleObject Spoon_bar__plus_01 Mug_bar__plus_01) (objectAtLocation Spoon_bar__plus_01 loc_bar_3)
(pickupable Spoon_bar__plus_01)
(objectType DeskLamp_bar__plus_01 DeskLampType) (toggleable DeskLamp_bar__plus_01) (pickupable DeskLamp_bar__plus_01)
(inReceptacle DeskLamp_bar__plus_01 SideTable_bar__plus_01) (inReceptacle DeskLamp_bar__plus_01 Shelf_bar__plus_01)
(objectAtLocation DeskLamp_bar__plus_01 loc_bar_6)
(objectType Statue_bar__plus_01 StatueType) (inReceptacle Statue_bar__plus_01 SideTable_bar__plus_01)
(objectAtLocation Window_bar__plus_01 loc_bar_1)
(objectAtLocation Window_bar__plus_01 loc_bar_1)
)
(:goal
    (and
        (exists (?r - receptacle)
            (exists (?o1 - object)
                (and
                    (objectType ?o1 AppleType)
                    (receptacleType ?r FridgeType)
                    (inReceptacle ?o1 ?r)
                    (exists (?o2 - object)
                        (and
                            (not (= ?o1 ?o2))
                            (objectType ?o2 AppleType)
                            (receptacleType ?r FridgeType)
                            (inReceptacle ?o2 ?r)
                        )
                    )
                )
            )
        )
    )
)
)
